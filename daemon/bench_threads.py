"""How many threads a model decodes fastest with: the measured curve behind `isotherm bench --threads auto`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..cpu_kernels.bandwidth import read_gb_s
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.topology import Topology
from ..experts.progress import Progress

_EACH = 16  # so many numbers of threads are all tried; of more, about so many
_AS_GOOD = 0.98  # of the best rate: noise, for which no more threads are spent


@dataclass(frozen=True, slots=True)
class ThreadPoint:
    """With so many threads: the decode rate in tokens/s and the plain read bandwidth in GB/s (10^9 bytes).

    physical: each thread can have a core of its own. nodes: memory nodes that have threads.
    """

    threads: int
    decode_tok_s: float
    read_gb_s: float
    physical: bool
    nodes: int = 1


def thread_counts(topology: Topology) -> list[int]:
    """The numbers of threads to try: all up to 16, then evenly thinned up to one for each CPU.

    Always with one for each fast core, for each core, and for each core of one memory node.
    """
    logical = max(1, topology.logical_cpus)
    few = range(1, min(_EACH, logical) + 1)
    step = max(1, -(-(logical - _EACH) // _EACH))
    marks = topology.fast_cores, len(topology.cores), len(topology.cores_of(0)), logical
    return sorted({*few, *range(_EACH, logical, step), *marks} - {0})


def measure_curve(decode_rate: Callable[[int], float], seating: Seating, progress: Progress) -> tuple[ThreadPoint, ...]:
    """One point per number of threads; `decode_rate` measures the model with so many, seated as in `seating`."""
    cores, points = len(seating.topology.cores), list[ThreadPoint]()
    counts = thread_counts(seating.topology)
    for i, threads in enumerate(counts):
        progress("trying numbers of threads", i, len(counts))
        seats = replace(seating, threads=threads)
        points.append(ThreadPoint(threads, decode_rate(threads), read_gb_s(seats), threads <= cores, seats.nodes))
    progress("trying numbers of threads", len(counts), len(counts))
    return tuple(points)


def best_threads(curve: Sequence[ThreadPoint]) -> int:
    """The fewest threads that decode as fast as any, within 2 %."""
    enough = _AS_GOOD * max(point.decode_tok_s for point in curve)
    return min(point.threads for point in curve if point.decode_tok_s >= enough)
