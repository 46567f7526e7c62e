"""How many threads a model decodes fastest with: the measured curve behind `isotherm bench --threads auto`."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..cpu_kernels.bandwidth import read_gb_s
from ..cpu_kernels.team import physical_cores
from ..experts.progress import Progress

_EACH = 16  # so many numbers of threads are all tried; of more, about so many
_AS_GOOD = 0.98  # of the best rate: noise, for which no more threads are spent


@dataclass(frozen=True, slots=True)
class ThreadPoint:
    """With so many threads: the decode rate in tokens/s and the plain read bandwidth in GB/s (10^9 bytes).

    physical: each thread can have a core of its own.
    """

    threads: int
    decode_tok_s: float
    read_gb_s: float
    physical: bool


def logical_cpus() -> int:
    """CPUs that this process may use; two or more of them may share a core."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts(physical: int, logical: int) -> list[int]:
    """The numbers of threads to try: all up to 16, then evenly thinned, always with both `physical` and `logical`."""
    few = range(1, min(_EACH, logical) + 1)
    step = max(1, -(-(logical - _EACH) // _EACH))
    return sorted({*few, *range(_EACH, logical, step), physical, logical})


def measure_curve(decode_rate: Callable[[int], float], progress: Progress) -> tuple[ThreadPoint, ...]:
    """One point per number of threads; `decode_rate` measures the model with so many."""
    physical = len(physical_cores())
    counts = thread_counts(physical, max(physical, logical_cpus()))
    points = []
    for i, threads in enumerate(counts):
        progress("trying numbers of threads", i, len(counts))
        points.append(ThreadPoint(threads, decode_rate(threads), read_gb_s(threads), threads <= physical))
    progress("trying numbers of threads", len(counts), len(counts))
    return tuple(points)


def best_threads(curve: Sequence[ThreadPoint]) -> int:
    """The fewest threads that decode as fast as any, within 2 %."""
    enough = _AS_GOOD * max(point.decode_tok_s for point in curve)
    return min(point.threads for point in curve if point.decode_tok_s >= enough)
