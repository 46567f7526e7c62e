"""Fixtures of the daemon's tests."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """State and cache folders that are this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def thawed() -> Iterator[None]:
    """What a test had the garbage collector leave alone is looked at again."""
    yield
    gc.unfreeze()
