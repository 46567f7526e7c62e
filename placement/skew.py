"""Skew: how unevenly a model's experts are used, and whether that carries over to other traffic."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .lru import global_hits, layer_hits
from .sample import count_sample
from .shuffle import shuffled_experts, shuffled_preferences, shuffled_time
from .trace import RoutingTrace

FRACTIONS = (0.05, 0.1, 0.2, 0.3, 0.5)
MAX_PARTS = 32
SHUFFLES = 20
ENOUGH = 16  # choices for each expert, on average, below which a sample says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of choices that go to the hottest `experts` of all layers' experts, `fraction` of them.

    same: where hot was learned from the very same traffic, so luck included. luck: what `same` is for as many choices
    made by chance. held_out: where hot was learned from the rest of the traffic, for each part in turn; spread: its
    standard error. uniform: what any set of so many experts covers if all are used alike. shuffled: what held_out is if
    each part prefers experts of its own, as strongly as before; shuffled_spread: its standard deviation between
    shuffles. by_layer: float64 [layers], held_out with the hottest `per_layer` experts of each layer.
    """

    fraction: float
    experts: int
    same: float
    luck: float
    held_out: float
    spread: float
    uniform: float
    shuffled: float
    shuffled_spread: float
    per_layer: int
    by_layer: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Of the sample of a trace: `tokens` of so many `sequences`, in `parts` of which each was held out in turn: whole
    sequences, or pieces of equal length where one sequence is most of the sample.

    coverage: for each of FRACTIONS. Hit rates by slots: lru_by_layer, float64 [layers, experts + 1], of a cache for
    each layer; lru_shuffled, the same with tokens in random order; lru_global, float64 [layers * experts + 1], of one
    cache for all layers.
    """

    tokens: int
    sequences: int
    parts: int
    parts_are: Literal["sequences", "pieces"]
    coverage: tuple[Coverage, ...]
    lru_by_layer: NDArray[np.float64]
    lru_shuffled: NDArray[np.float64]
    lru_global: NDArray[np.float64]

    def at(self, fraction: float) -> Coverage:
        """Of one of FRACTIONS."""
        return self.coverage[FRACTIONS.index(fraction)]


def covered(counts: NDArray[np.float64], fraction: float) -> float:
    """The share of all activations [layers, experts] that the hottest `fraction` of all experts take; 0 if there were
    none."""
    hottest = np.sort(counts, axis=None)[::-1]
    return float(hottest[: _of(fraction, counts.size)].sum() / (hottest.sum() or 1.0))


def tokens_needed(trace: RoutingTrace) -> int:
    """How many tokens a sample must have for its skew to be measured."""
    return -(-ENOUGH * trace.num_experts // trace.top_k)


def measure_skew(trace: RoutingTrace, seed: int = 0) -> Skew | None:
    """Everything that a trace's sample tells of skew; None if it has fewer than `tokens_needed`. The seed is for the
    shuffles."""
    if len(trace.sample) < tokens_needed(trace):
        return None
    rng = np.random.default_rng(seed)
    bounds, parts_are = _bounds(trace)
    ends = np.append(bounds[1:], len(trace.sample))
    parts = np.stack(
        [count_sample(trace.sample[a:b], trace.num_experts) for a, b in zip(bounds, ends, strict=True)]
    )  # [parts, layers, experts]
    return Skew(
        tokens=len(trace.sample),
        sequences=len(trace.starts),
        parts=len(parts),
        parts_are=parts_are,
        coverage=_coverage(parts, count_sample(shuffled_experts(trace, rng).sample, trace.num_experts), rng),
        lru_by_layer=layer_hits(trace.sample, trace.num_experts),
        lru_shuffled=layer_hits(shuffled_time(trace, rng).sample, trace.num_experts),
        lru_global=global_hits(trace.sample, trace.num_experts),
    )


def held_out_hits(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """parts: counts [parts, experts]. Activations [parts, experts] of each part that go to the n + 1 experts that are
    the hottest in all other parts together."""
    rest = parts.sum(axis=0) - parts
    order = np.argsort(-rest, axis=1, kind="stable")
    return np.cumsum(np.take_along_axis(parts, order, axis=1), axis=1)


def _of(fraction: float, count: int) -> int:
    return max(round(fraction * count), 1)


def _bounds(trace: RoutingTrace) -> tuple[NDArray[np.int64], Literal["sequences", "pieces"]]:
    """Where the parts begin. Neighbouring sequences share a part where there are more than MAX_PARTS."""
    tokens, starts = len(trace.sample), trace.starts
    if 2 * (trace.ends - starts).max() > tokens:
        # What is left for learning would be too little when the long one is held out.
        return np.arange(4) * tokens // 4, "pieces"
    if len(starts) > MAX_PARTS:
        wanted = np.searchsorted(starts, np.arange(MAX_PARTS) * tokens / MAX_PARTS)
        starts = np.unique(starts[np.minimum(wanted, len(starts) - 1)])
    return starts, "sequences"


def _coverage(
    parts: NDArray[np.float64], by_chance: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Coverage, ...]:
    """parts: counts [parts, layers, experts]; by_chance: counts [layers, experts] of as many choices."""
    count, layers, experts = parts.shape
    sizes = parts.sum(axis=(1, 2))
    hits = held_out_hits(parts.reshape(count, -1))
    shuffled = [held_out_hits(shuffled_preferences(parts, rng).reshape(count, -1)).sum(axis=0) for _ in range(SHUFFLES)]
    shares = np.array(shuffled) / sizes.sum()
    of_layers = (
        np.stack([held_out_hits(parts[:, layer]).sum(axis=0) for layer in range(layers)]) / parts.sum((0, 2))[:, None]
    )
    total = parts.sum(axis=0)

    def coverage(fraction: float) -> Coverage:
        n, per_layer = _of(fraction, layers * experts), _of(fraction, experts)
        held_out = float(hits[:, n - 1].sum() / sizes.sum())
        off = hits[:, n - 1] - held_out * sizes
        return Coverage(
            fraction=fraction,
            experts=n,
            same=covered(total, fraction),
            luck=covered(by_chance, fraction),
            held_out=held_out,
            spread=float(np.sqrt((off**2).sum() * count / (count - 1)) / sizes.sum()),
            uniform=n / (layers * experts),
            shuffled=float(shares[:, n - 1].mean()),
            shuffled_spread=float(shares[:, n - 1].std(ddof=1)),
            per_layer=per_layer,
            by_layer=of_layers[:, per_layer - 1],
        )

    return tuple(coverage(fraction) for fraction in FRACTIONS)
