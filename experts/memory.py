"""Zeroed memory for kernels: aligned, and in huge pages where it is large and the system allows it."""

import ctypes
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

_PAGE = 1 << 21
_LINE = 64


def aligned(rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """uint8 [rows, row_bytes] of zeros on a cache line border; pages count only once they are written."""
    return arena(rows * row_bytes).reshape(rows, row_bytes)


def drop(memory: NDArray[np.uint8]) -> int:
    """Give the whole pages of a stretch of memory back to the system: they are zeros then, and count once they are
    written again. Bytes; 0 where the system cannot."""
    call = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    start = -(-memory.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (memory.ctypes.data + memory.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if call is None or size <= 0:
        return 0
    refused = call(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
    return 0 if refused else size


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
