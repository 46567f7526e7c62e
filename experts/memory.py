"""Zeroed memory for kernels: aligned, and in huge pages where it is large and the system allows it."""

import mmap

import numpy as np
from numpy.typing import NDArray

_PAGE = 1 << 21
_LINE = 64


def aligned(rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """uint8 [rows, row_bytes] of zeros on a cache line border; pages count only once they are written."""
    return arena(rows * row_bytes).reshape(rows, row_bytes)


def arena(size: int) -> NDArray[np.uint8]:
    """uint8 [size] of zeros."""
    if size < _PAGE:
        memory = np.zeros(size + _LINE, np.uint8)
        start = -memory.ctypes.data % _LINE
        return memory[start : start + size]
    mapped = mmap.mmap(-1, size + _PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % _PAGE
    return memory[start : start + size]
