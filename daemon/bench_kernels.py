"""What `isotherm bench --kernels` measures: the product of every packed kind of weights, alone, over a table of cases.

A case is a matrix and a number of tokens. Weights come from memory: more of them than any cache holds, in turn.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..cpu_kernels.bandwidth import read_gb_s
from ..cpu_kernels.descriptor import N_TOKENS
from ..cpu_kernels.layout import KINDS
from ..cpu_kernels.team import Team
from ..experts.formats import FORMATS
from ..experts.progress import Progress
from ..experts.synthetic import ProductLayers
from .machine import free_memory
from .memory import GIB, RESERVE, MemoryPlanError

SHAPES = ((768, 2048), (4096, 2048), (2048, 4096))  # rows x columns: an expert's part, a layer's projections
TOKENS = (1, 8, 32, 256)
_SECONDS = 0.15  # each case runs at least so long


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One case: microseconds of a product, GB/s (10^9 bytes) of its weights, 10^9 operations/s.

    read_share: GB/s over the plain read bandwidth of the same threads; None for several tokens, which are about
    arithmetic.
    """

    kind: str
    formats: tuple[str, ...]
    rows: int
    columns: int
    tokens: int
    us: float
    gb_s: float
    gops: float
    read_share: float | None = None


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The rows, and what they are measured against."""

    threads: int
    read_gb_s: float
    cases: tuple[KernelRow, ...]


def formats_of(kind: str) -> tuple[str, ...]:
    """Names of the formats that are packed into a kind."""
    return tuple(name for name, row in FORMATS.items() if row.packed == kind)


def measure_kernels(
    threads: int,
    progress: Progress,
    shapes: tuple[tuple[int, int], ...] = SHAPES,
    tokens: tuple[int, ...] = TOKENS,
) -> KernelTable:
    """Every kind x shape x number of tokens. Raises MemoryPlanError before anything large is allocated."""
    kinds = [kind for kind in KINDS if formats_of(kind)]
    _check_fit(kinds, shapes, max(tokens))
    total, rows = len(kinds) * len(shapes), list[KernelRow]()
    limit = read_gb_s(threads)
    team = Team(threads)
    try:
        for kind in kinds:
            for shape in shapes:
                progress("measuring kernels", len(rows) // len(tokens), total)
                rows.extend(_measure(team, kind, shape, tokens))
    finally:
        team.close()
    limit = max(limit, read_gb_s(threads))  # of before and after, since other work on the machine comes and goes
    progress("measuring kernels", total, total)
    return KernelTable(threads, limit, tuple(_with_share(row, limit) for row in rows))


def _with_share(row: KernelRow, limit: float) -> KernelRow:
    return replace(row, read_share=row.gb_s / limit) if row.tokens == 1 else row


def _check_fit(kinds: list[str], shapes: tuple[tuple[int, int], ...], tokens: int) -> None:
    needed = max(ProductLayers.needed_bytes(kind, *shape, tokens) for kind in kinds for shape in shapes)
    free = max(free_memory() - RESERVE, 0)
    if needed > free:
        raise MemoryPlanError(
            f"the kernel table needs {needed / GIB:.2f} GiB, but only {free / GIB:.2f} GiB of memory can be used; "
            "free some"
        )


def _measure(team: Team, kind: str, shape: tuple[int, int], tokens: tuple[int, ...]) -> Iterator[KernelRow]:
    rows, columns = shape
    layers = ProductLayers(kind, rows, columns, max(tokens), team.threads)
    for count in tokens:
        layers.counts[N_TOKENS] = count
        seconds = _time(team, layers)
        yield KernelRow(
            kind=kind,
            formats=formats_of(kind),
            rows=rows,
            columns=columns,
            tokens=count,
            us=seconds * 1e6,
            gb_s=layers.matrix_bytes / seconds / 1e9,
            gops=2 * rows * columns * count / seconds / 1e9,
        )


def _time(team: Team, layers: ProductLayers) -> float:
    """Mean seconds of one product, after a run that warms up; one run that is long is enough."""
    times: list[float] = []
    while sum(times[1:]) < _SECONDS:
        started = time.perf_counter()
        team.run(layers.program, layers.counts)
        times.append(time.perf_counter() - started)
        if times[0] > 2 * _SECONDS:
            return times[0] / layers.products
    return sum(times[1:]) / (len(times) - 1) / layers.products
