"""Arenas that are mapped from files, in pages so small that tiny weights have many of them."""

import mmap
from pathlib import Path

import numpy as np
import pytest
from isotherm.experts import mapped, page_cache
from isotherm.experts.mapped import map_huge
from isotherm.experts.model import Model
from isotherm.experts.pack import PackedWeights, pack
from isotherm.experts.store import PackedStore
from numpy.typing import NDArray

PAGE = mmap.PAGESIZE


def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are mapped whatever their pages, and given back by the smallest."""
    monkeypatch.setattr(mapped, "_PROBES", 0)
    monkeypatch.setattr(page_cache, "PAGE", PAGE)


def map_bytes(path: Path, content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The content as it lies in a file, behind a page of something else."""
    path.write_bytes(bytes(PAGE) + content.tobytes())
    with path.open("rb") as file:
        arena = map_huge(file.fileno(), PAGE, content.nbytes)
    assert arena is not None
    return arena


def mapped_pages(arena: NDArray[np.uint8]) -> list[bool]:
    """By the system's table, which pages of an arena take memory of this process."""
    first, count = arena.ctypes.data // PAGE, -(-arena.nbytes // PAGE)
    with Path("/proc/self/pagemap").open("rb") as table:
        table.seek(8 * first)
        entries = np.frombuffer(table.read(8 * count), "<u8")
    return [bool(entry) for entry in entries >> 63]


def mapped_weights(model: Model, folder: Path) -> PackedWeights:
    """As a second start has them."""
    store = PackedStore(folder, model)
    store.save(pack(model))
    return store.load()
