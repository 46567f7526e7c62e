"""RoutingTrace: which experts tokens went to, as counts and a bounded sample of the sequence of choices."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")


@dataclass(slots=True, kw_only=True)
class PhaseCounts:
    """Of one phase. counts, mass: float64 [MoE layers, experts], activations and sums of router weights; they are
    fractions once old traffic has decayed. tokens: float64 [MoE layers], how many were routed there. steps: how many
    steps; distinct: float64 [MoE layers], experts touched, summed over steps."""

    counts: NDArray[np.float64]
    mass: NDArray[np.float64]
    tokens: NDArray[np.float64]
    steps: float
    distinct: NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class RoutingTrace:
    """Of one model. layers: the numbers of its MoE layers. sample: uint16 [tokens, MoE layers, top_k], decode tokens in
    the order they were chosen; starts: int64, where in the sample another sequence begins, 0 first."""

    fingerprint: str
    num_experts: int
    top_k: int
    layers: tuple[int, ...]
    phases: dict[Phase, PhaseCounts]
    sample: NDArray[np.uint16]
    starts: NDArray[np.int64]
