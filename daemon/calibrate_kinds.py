"""How fast products with one kind of packed weights are: from memory and from cache, by the number of tokens."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..cpu_kernels.bandwidth import PlainReads
from ..cpu_kernels.layout import KINDS, SPAN
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.team import Team
from ..experts.measured import TOUCHED, Measured, MeasuredExperts, MeasuredProducts
from ..placement.fit import ExpertTimes, Plain, ProductTimes
from ..placement.hardware import BLOCKS

EXPERT_SIZES = (2048, 768)  # of those that come from memory, as models have them
SMALL_SIZES = (512, 256)  # of those whose calls are measured
_NEAR_COLUMNS = 1024
_NEAR_BYTES = 384 << 10  # of a layer for each thread: they stay in second-level caches, and outlast the ops around them
_COUNTS = (1, 2, 4, 8, 16, 32)  # of experts touched
_REPEATS = 3
_CALM = 10  # runs of what lies in cache: the fastest one was not disturbed


def seconds(work: Callable[[], object], repeats: int = _REPEATS) -> list[float]:
    """Of some runs, after one that warms up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return times


@dataclass(frozen=True, slots=True)
class KindMeter:
    """Measures on a team, whose workers sit as the seating says, as those of the plain reads do."""

    team: Team
    seating: Seating
    plain: PlainReads

    def experts(self, kind: str) -> ExpertTimes:
        """One round of layers whose experts are so small that calls count."""
        experts = MeasuredExperts(kind, max(_COUNTS), SMALL_SIZES, self.seating, far=False)
        us = {}
        for count in _COUNTS:
            experts.route(0, count, 1)
            us[count] = self._calm_seconds(experts) * 1e6 / experts.layers
        return ExpertTimes(experts.expert_bytes / 1024 * self._near(kind, (1,))[1], us)

    def products(self, kind: str, layer_us: float) -> ProductTimes:
        """One round of a kind; layer_us: what a layer of TOUCHED experts takes beside its products."""
        experts = MeasuredExperts.from_memory(kind, EXPERT_SIZES, self.seating)
        kib = TOUCHED * experts.expert_bytes / 1024
        far, plain = {}, [self.plain.gb_s()]
        for tokens in BLOCKS:
            us = self._turns(experts, tokens) * 1e6 / experts.layers
            far[tokens] = max(us - layer_us, us / 2) * 1e3 / kib
            plain.append(self.plain.gb_s())
        return ProductTimes(far, self._near(kind, BLOCKS), Plain(tuple(plain)))

    def compile(self, kind: str) -> None:
        """Run the kind's kernels once."""
        products = MeasuredProducts(kind, SPAN, SPAN, 1, self.seating, far=False)
        products.set_tokens(1)
        self.team.run(products.program, products.counts)

    def _turns(self, experts: MeasuredExperts, tokens: int) -> float:
        """Seconds of a run; each touches the next experts, so all weights come by before any comes again."""
        turn = iter(range(experts.experts))

        def work() -> None:
            experts.route(next(turn) * TOUCHED, TOUCHED, tokens)
            self.team.run(experts.program, experts.counts)

        return float(np.median(seconds(work, max(_REPEATS, experts.experts // TOUCHED))))

    def _near(self, kind: str, blocks: tuple[int, ...]) -> dict[int, float]:
        """Nanoseconds for a KiB by the number of tokens, from the threads' own caches."""
        row_bytes = KINDS[kind].unit_bytes / 16 / (SPAN * KINDS[kind].spans) * _NEAR_COLUMNS
        rows = max(int(_NEAR_BYTES * self.seating.threads / (3 * row_bytes)) // SPAN, 1) * SPAN
        products = MeasuredProducts(kind, rows, _NEAR_COLUMNS, max(blocks), self.seating, far=False)
        ns = {}
        for tokens in blocks:
            products.set_tokens(tokens)
            ns[tokens] = self._calm_seconds(products) * 1e9 / (products.nbytes / 1024)
        return ns

    def _calm_seconds(self, measured: Measured) -> float:
        return min(seconds(lambda: self.team.run(measured.program, measured.counts), _CALM))
