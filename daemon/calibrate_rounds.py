"""Rounds of measurements: in each everything once. So what is compared was measured in the same seconds, and
repetitions of one thing lie far apart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..cpu_kernels.bandwidth import PlainReads
from ..cpu_kernels.kv_layout import KV_KINDS
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.team import Team
from ..experts.measured import TOUCHED
from ..experts.progress import Progress
from ..experts.random_decoder import ROUTER_KIND
from ..placement.fit import fit_experts
from .calibrate_decoders import DecoderMeter, DecoderShapes
from .calibrate_kinds import KindMeter
from .calibrate_terms import Round
from .machine import free_memory
from .memory import GIB, RESERVE, MemoryPlanError

NEEDED = 3 * GIB  # random weights and caches
_FEW_KINDS = 6
_ROUNDS, _ROUNDS_OF_MANY = 9, 5


def take_rounds(kinds: Sequence[str], seating: Seating, progress: Progress) -> tuple[list[Round], DecoderShapes]:
    """kinds: of packed weights; the first one stands for all where only one is measured.

    Raises MemoryPlanError before anything large is allocated.
    """
    free = max(free_memory() - RESERVE, 0)
    if free < NEEDED:
        raise MemoryPlanError(
            f"calibrating needs {NEEDED / GIB:.2f} GiB, but only {free / GIB:.2f} GiB of memory can be used; free some"
        )
    kinds = tuple(dict.fromkeys((*kinds, ROUTER_KIND)))
    count = _ROUNDS if len(kinds) <= _FEW_KINDS else _ROUNDS_OF_MANY
    progress("compiling kernels", 0, 1)
    team = Team(seating)
    try:
        plain = PlainReads(seating)
        with DecoderMeter(kinds[0], tuple(KV_KINDS), seating, plain) as decoders:
            rounds = _Rounds(kinds, KindMeter(team, seating, plain), decoders)
            rounds.compile()
            progress("compiling kernels", 1, 1)
            return list(rounds.take(count, progress)), decoders.shapes
    finally:
        team.close()


@dataclass(frozen=True, slots=True)
class _Rounds:
    kinds: tuple[str, ...]
    meter: KindMeter
    decoders: DecoderMeter

    def compile(self) -> None:
        """Run each kernel once: compiling is no part of any time."""
        self.meter.experts(self.kinds[0])
        for kind in self.kinds:
            self.meter.compile(kind)
        self.decoders.times()

    def take(self, count: int, progress: Progress) -> Iterator[Round]:
        total = count * (len(self.kinds) + 1)
        for first in range(0, total, len(self.kinds) + 1):
            progress("measuring", first, total)
            experts = self.meter.experts(self.kinds[0])
            call_us, expert_us = fit_experts(experts)
            products = {}
            for done, kind in enumerate(self.kinds, first):
                progress("measuring", done, total)
                products[kind] = self.meter.products(kind, call_us + TOUCHED * expert_us)
            progress("measuring", first + len(self.kinds), total)
            decoders = self.decoders.times()
            yield Round(reads=self._reads(), experts=experts, products=products, decoders=decoders)
        progress("measuring", total, total)

    def _reads(self) -> dict[int, float]:
        """With fewer threads than the meter's: of powers of two."""
        most = self.meter.seating.threads
        counts = [1 << i for i in range(most.bit_length()) if 1 << i < most]
        return {threads: PlainReads(replace(self.meter.seating, threads=threads)).gb_s() for threads in counts}
