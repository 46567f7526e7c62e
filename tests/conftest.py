"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest
from isotherm.experts import store


@pytest.fixture(scope="session", autouse=True)
def no_spare_space() -> Iterator[None]:
    """Packed stores may fill the disk, so that no test depends on how full this machine's is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SPARE", 0)
        yield
