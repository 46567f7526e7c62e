"""PinnedMemory: host memory that emulated devices reach without a detour."""

import weakref
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from .budget import bytes_of

_ALIGNMENT = 64


class PinnedMemory:
    """Gives it out, and knows it again while anyone holds it. For all devices of a host."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # by the first address, that behind the last
        self._starts: list[int] = []  # in order
        self._locks: Counter[int] = Counter()  # of what others have allocated, by its first address

    def __len__(self) -> int:
        """Pieces that someone holds."""
        return len(self._starts)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        nbytes = bytes_of(tuple(shape), dtype)
        block = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        offset = -block.ctypes.data % _ALIGNMENT
        if nbytes:
            start = block.ctypes.data + offset
            self._ends[start] = start + nbytes
            insort(self._starts, start)
            weakref.finalize(block, self._forget, start).atexit = False
        return torch.from_numpy(block[offset : offset + nbytes]).view(dtype).reshape(tuple(shape))

    def lock(self, memory: torch.Tensor) -> None:
        """Take in memory of somebody else, until it was unlocked as often as it was locked."""
        start = memory.data_ptr()
        self._locks[start] += 1
        if self._locks[start] == 1 and memory.nbytes:
            self._ends[start] = start + memory.nbytes
            insort(self._starts, start)

    def unlock(self, memory: torch.Tensor) -> None:
        start = memory.data_ptr()
        self._locks[start] -= 1
        if not self._locks[start] and memory.nbytes:
            self._forget(start)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its bytes lie there, whoever made a tensor of them."""
        first = tensor.data_ptr()
        place = bisect_right(self._starts, first) - 1
        return not tensor.nbytes or (place >= 0 and first + tensor.nbytes <= self._ends[self._starts[place]])

    def _forget(self, start: int) -> None:
        del self._ends[start]
        self._starts.remove(start)
