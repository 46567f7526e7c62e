"""Skew: how unevenly a model's experts are used, and whether that carries over to other traffic."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .trace import RoutingTrace

FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of choices that go to the hottest `experts` of all layers' experts, `fraction` of them.

    same: where hot was learned from the very same traffic, so luck included. held_out: from the rest of the traffic, of
    each sequence in turn; spread: its standard error. by_layer: float64 [layers], the same with the hottest of each
    layer. uniform: what any choice of so many experts would cover if all were used alike. shuffled: what held_out is
    when each part of the traffic prefers experts of its own, as uneven as before; shuffled_spread: standard deviation
    between shuffles.
    """

    fraction: float
    experts: int
    same: float
    held_out: float
    spread: float
    by_layer: NDArray[np.float64]
    uniform: float
    shuffled: float
    shuffled_spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """text: a sentence or two with the numbers behind it."""

    pinning: Literal["helps", "does not help", "unknown"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewReport:
    """Of the sample of a trace. parts: into how many it was split to hold out each; coverage: for each of FRACTIONS.

    lru_by_layer: float64 [layers, experts + 1], hit rates by slots of a cache for each layer; lru_global: float64
    [layers * experts + 1], of one for all; lru_shuffled: float64 [experts + 1], mean of layers with tokens in random
    order. All but the verdict are empty where there is too little traffic.
    """

    tokens: int
    sequences: int
    parts: int
    coverage: tuple[Coverage, ...]
    lru_by_layer: NDArray[np.float64]
    lru_global: NDArray[np.float64]
    lru_shuffled: NDArray[np.float64]
    verdict: Verdict


def covered(counts: NDArray[np.float64], fraction: float) -> float:
    """The share of all activations [layers, experts] that the hottest `fraction` of all experts take."""
    raise NotImplementedError


def covered_by_layer(counts: NDArray[np.float64], fraction: float) -> NDArray[np.float64]:
    """As `covered`, of each layer by itself: [layers], 0 where there was no traffic."""
    raise NotImplementedError


def measure_skew(trace: RoutingTrace, seed: int = 0) -> SkewReport:
    """Everything that a trace's sample tells of skew. Deterministic for a seed."""
    raise NotImplementedError
