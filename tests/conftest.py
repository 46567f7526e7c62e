"""What all tests share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from isotherm.experts import store

# Triton's kernels run in its interpreter, which works on NumPy arrays and needs no graphics card. Triton asks for this
# as soon as it is imported, and some libraries do so.
os.environ["TRITON_INTERPRET"] = "1"


# The same examples each time, however slow the machine is that others use as well.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def no_spare_space() -> Iterator[None]:
    """Packed stores may fill the disk, so that no test depends on how full this machine's is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SPARE", 0)
        yield
