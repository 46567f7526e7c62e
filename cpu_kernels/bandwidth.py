"""How fast plain loads go: the memory wall that decoding is measured against."""

import mmap
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .jit import kernel
from .seating import Seat, Seating

_BYTES = 1 << 29  # far out of every cache
_PASSES = 3
_REPEATS = 5

Words = NDArray[np.uint64]


@kernel
def _read(words, passes):  # type: ignore[no-untyped-def]
    """Sum `passes` times over the words: loads, and one addition for each vector of them."""
    total = np.uint64(0)
    for _ in range(passes):
        for i in range(words.size):
            total ^= words[i]
        total += np.uint64(1)  # keeps the passes apart
    return total


def read_gb_s(threads: int | Seating, repeats: int = _REPEATS) -> float:
    """Plain read bandwidth of so many threads together, in GB/s (10^9 bytes): the best of `repeats` runs. It takes
    about a second, or less with fewer repeats, and the memory of `PlainReads`."""
    reads = PlainReads(threads)
    return max(reads.gb_s() for _ in range(repeats))


class PlainReads:
    """Half a GiB of memory, in huge pages where the system allows it, that is read again and again. Threads of a
    seating read what lies at their own node."""

    def __init__(self, threads: int | Seating) -> None:
        self._seating = Seating.of(threads)
        if self._seating.threads < 1:
            raise ValueError(f"bandwidth needs at least 1 thread, not {threads}")
        self._parts = np.array_split(_buffer(), self._seating.threads)
        _read(self._parts[0][:64], 1)  # compile
        _run(self._seating, self._parts, _touch)

    def gb_s(self) -> float:
        """In GB/s (10^9 bytes), within a tenth of a second."""
        return _PASSES * _BYTES / _run(self._seating, self._parts, lambda part: _read(part, _PASSES)) / 1e9


def _touch(part: Words) -> None:
    """Pages that were never written are all one page of zeros; and who writes first has them at its node."""
    part[:] = 1


def _buffer() -> Words:
    memory = mmap.mmap(-1, _BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint64)


def _run(seating: Seating, parts: list[Words], work: Callable[[Words], object]) -> float:
    """Seconds until all threads have done the work with their part."""

    def sit_and_work(seat: Seat, part: Words) -> None:
        seating.take(seat)
        work(part)

    workers = [threading.Thread(target=sit_and_work, args=pair) for pair in zip(seating.seats, parts, strict=True)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - started
