"""How fast plain loads go: the memory wall that decoding is measured against."""

import mmap
import threading
import time

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

_BYTES = 1 << 29  # far out of every cache
_PASSES = 3
_REPEATS = 5


@kernel
def _read(words, passes):  # type: ignore[no-untyped-def]
    """Sum `passes` times over the words: loads, and one addition for each vector of them."""
    total = np.uint64(0)
    for _ in range(passes):
        for i in range(words.size):
            total ^= words[i]
        total += np.uint64(1)  # keeps the passes apart
    return total


def read_gb_s(threads: int) -> float:
    """Plain read bandwidth of so many threads together, in GB/s (10^9 bytes): the best of some runs.

    It takes about a second and half a GiB of memory, in huge pages where the system allows it.
    """
    if threads < 1:
        raise ValueError(f"bandwidth needs at least 1 thread, not {threads}")
    parts = np.array_split(_buffer(), threads)
    _read(parts[0][:64], 1)  # compile
    seconds = min(_run(parts) for _ in range(_REPEATS))
    return _PASSES * _BYTES / seconds / 1e9


def _buffer() -> NDArray[np.uint64]:
    memory = mmap.mmap(-1, _BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    words = np.frombuffer(memory, np.uint64)
    words[:] = 1  # pages that were never written are all one page of zeros
    return words


def _run(parts: list[NDArray[np.uint64]]) -> float:
    """Seconds until all threads have read their part."""
    workers = [threading.Thread(target=_read, args=(part, _PASSES)) for part in parts]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - started
