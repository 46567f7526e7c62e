"""Skew: how unevenly a model's experts are used, and whether that carries over to other traffic."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
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
_SEED = 0  # of these
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
class Popularity:
    """Of the sample of a trace: `tokens` of so many `sequences`, in `parts` of which each was held out in turn: whole
    sequences, or pieces of equal length where one sequence is most of the sample. coverage: by some fractions."""

    tokens: int
    sequences: int
    parts: int
    parts_are: Literal["sequences", "pieces"]
    coverage: tuple[Coverage, ...]

    def at(self, fraction: float) -> Coverage:
        """Raises StopIteration for one that was not measured."""
        return next(each for each in self.coverage if each.fraction == fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew(Popularity):
    """Popularity by all FRACTIONS, and recency. Hit rates by slots: lru_by_layer, float64 [layers, experts + 1], of a
    cache for each layer; lru_shuffled, the same with tokens in random order; lru_global, float64 [layers * experts +
    1], of one cache for all layers."""

    lru_by_layer: NDArray[np.float64]
    lru_shuffled: NDArray[np.float64]
    lru_global: NDArray[np.float64]


def covered(counts: NDArray[np.float64], fraction: float) -> float:
    """The share of all activations [layers, experts] that the hottest `fraction` of all experts take; 0 if there were
    none."""
    hottest = np.sort(counts, axis=None)[::-1]
    return float(hottest[: _of(fraction, counts.size)].sum() / (hottest.sum() or 1.0))


def tokens_needed(trace: RoutingTrace) -> int:
    """How many tokens a sample must have for its skew to be measured."""
    return -(-ENOUGH * trace.num_experts // trace.top_k)


def measure_skew(trace: RoutingTrace) -> Skew | None:
    """Everything that a trace's sample tells of skew; None if it has fewer than `tokens_needed`. Equal input gives
    equal output."""
    rng = np.random.default_rng(_SEED)
    popularity = _popularity(trace, FRACTIONS, rng)
    if popularity is None:
        return None
    return Skew(
        **{field.name: getattr(popularity, field.name) for field in fields(popularity)},
        lru_by_layer=layer_hits(trace.sample, trace.num_experts),
        lru_shuffled=layer_hits(shuffled_time(trace, rng).sample, trace.num_experts),
        lru_global=global_hits(trace.sample, trace.num_experts),
    )


def measure_popularity(trace: RoutingTrace, fraction: float) -> Popularity | None:
    """What `measure_skew` says of popularity, by one fraction, in a fraction of the time."""
    return _popularity(trace, (fraction,), np.random.default_rng(_SEED))


def _popularity(trace: RoutingTrace, fractions: Sequence[float], rng: np.random.Generator) -> Popularity | None:
    if len(trace.sample) < tokens_needed(trace):
        return None
    bounds, parts_are = _bounds(trace)
    ends = np.append(bounds[1:], len(trace.sample))
    parts = np.stack(
        [count_sample(trace.sample[a:b], trace.num_experts) for a, b in zip(bounds, ends, strict=True)]
    )  # [parts, layers, experts]
    by_chance = count_sample(shuffled_experts(trace, rng).sample, trace.num_experts)
    return Popularity(
        tokens=len(trace.sample),
        sequences=len(trace.starts),
        parts=len(parts),
        parts_are=parts_are,
        coverage=_coverage(parts, by_chance, fractions, rng),
    )


def held_out_hits(parts: NDArray[np.float64], counts: Sequence[int]) -> NDArray[np.float64]:
    """parts: whole numbers [parts, experts]. Activations [parts, counts] of each part that go to so many experts that
    are the hottest in all other parts together, of equal ones the first."""
    rest = parts.sum(axis=0) - parts
    experts = parts.shape[1]
    order = rest * experts - np.arange(experts)  # no two are equal
    places = [experts - count for count in counts]
    least = np.partition(order, places, axis=1)[:, places]
    return np.stack([(parts * (order >= least[:, [i]])).sum(axis=1) for i in range(len(places))], axis=1)


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
    parts: NDArray[np.float64], by_chance: NDArray[np.float64], fractions: Sequence[float], rng: np.random.Generator
) -> tuple[Coverage, ...]:
    """parts: counts [parts, layers, experts]; by_chance: counts [layers, experts] of as many choices."""
    count, layers, experts = parts.shape
    sizes, total = parts.sum(axis=(1, 2)), parts.sum(axis=0)
    sets, in_layer = ([_of(each, of) for each in fractions] for of in (layers * experts, experts))
    hits = held_out_hits(parts.reshape(count, -1), sets)
    shuffled = [
        held_out_hits(shuffled_preferences(parts, rng).reshape(count, -1), sets).sum(axis=0) for _ in range(SHUFFLES)
    ]
    shares = np.array(shuffled) / sizes.sum()
    of_layers = np.stack([held_out_hits(parts[:, layer], in_layer).sum(axis=0) for layer in range(layers)])

    def coverage(number: int) -> Coverage:
        fraction, n = fractions[number], sets[number]
        held_out = float(hits[:, number].sum() / sizes.sum())
        off = hits[:, number] - held_out * sizes
        return Coverage(
            fraction=fraction,
            experts=n,
            same=covered(total, fraction),
            luck=covered(by_chance, fraction),
            held_out=held_out,
            spread=float(np.sqrt((off**2).sum() * count / (count - 1)) / sizes.sum()),
            uniform=n / (layers * experts),
            shuffled=float(shares[:, number].mean()),
            shuffled_spread=float(shares[:, number].std(ddof=1)),
            per_layer=in_layer[number],
            by_layer=of_layers[:, number] / total.sum(axis=1),
        )

    return tuple(coverage(number) for number in range(len(fractions)))
