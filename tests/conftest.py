"""What all tests share."""

import os
from collections.abc import Iterator

import pytest
from isotherm.experts import store

# Triton's kernels run in its interpreter, which works on NumPy arrays and needs no graphics card. Triton asks for this
# as soon as it is imported, and some libraries do so.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def no_spare_space() -> Iterator[None]:
    """Packed stores may fill the disk, so that no test depends on how full this machine's is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SPARE", 0)
        yield
