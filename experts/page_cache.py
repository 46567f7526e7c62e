"""PageCache: RAM of packed weights that the system may have for something else, since only accelerators use them.

Weights that are mapped from their store come back from the file when somebody reads them, so nothing depends on when,
or whether, that is. Weights that were packed or read by this process have no file behind them and stay where they are.
"""

import mmap
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from .checkpoint.mapping import mapping_under
from .mapped import HUGE_PAGE, HugeMapping

# Bytes that are given back together. Smaller ones would leave what lies beside them in small pages, which is slower.
PAGE = HUGE_PAGE


class PageCache:
    """Of an arena. A page is given back once no byte of it is needed.

    It is not asked for again ahead of time: read ahead it would come in small pages, but comes in huge ones when the
    CPU reads it.
    """

    def __init__(self, arena: NDArray[np.uint8]) -> None:
        mapping = mapping_under(arena)
        self._mapping = mapping if isinstance(mapping, HugeMapping) and hasattr(mmap, "MADV_DONTNEED") else None
        self._sizes = np.full(-(-arena.nbytes // PAGE), PAGE)
        self._sizes[-1:] -= -arena.nbytes % PAGE
        self._needed = self._sizes.copy()
        if self._mapping is not None:
            self._start = arena.ctypes.data - np.frombuffer(self._mapping, np.uint8).ctypes.data

    @property
    def given_back_bytes(self) -> int:
        return int(self._sizes[self._needed == 0].sum())

    def give_back(self, places: Iterable[tuple[int, int]]) -> None:
        """Nobody needs these bytes in RAM any more. places: first byte in the arena and size; each needed until now."""
        if self._mapping is None:
            return
        for page, nbytes in _by_page(places):
            self._needed[page] -= nbytes
            if not self._needed[page]:
                self._mapping.madvise(mmap.MADV_DONTNEED, self._start + page * PAGE, int(self._sizes[page]))

    def take_back(self, places: Iterable[tuple[int, int]]) -> None:
        """Somebody needs these bytes again. places: as they were given back."""
        if self._mapping is None:
            return
        for page, nbytes in _by_page(places):
            self._needed[page] += nbytes


def _by_page(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Pages that places lie in, and how many of their bytes."""
    for first, size in places:
        for page in range(first // PAGE, -(-(first + size) // PAGE)):
            yield page, min(first + size, (page + 1) * PAGE) - max(first, page * PAGE)
