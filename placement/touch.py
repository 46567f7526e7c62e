"""How a step's tokens fall on the experts of a layer: shares, chances, and what a set of experts is touched by.

`Demand` has two makers. `independent` takes each expert's share and lets every token choose by itself; `replay` draws
steps out of a trace's sample, one token each of different sequences. A token's experts differ from each other, which
both respect.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from .trace import Phase, RoutingTrace

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PRIOR_TOKENS = 16  # so many tokens without a preference are added to what was counted
ENOUGH = 20  # choices that an expert had on average, from which on a sample is replayed
_STEPS = 2048  # drawn from a sample, at most
_SEED = 4_3
_FAR = 20  # standard deviations, and tokens, beyond which nothing is counted
_TYPICAL = 0.6  # the exponent of a usual skew: half the experts get three quarters of the choices


@dataclass(slots=True)
class Demand:
    """Of a step of `tokens` tokens on one layer.

    chances: float64 [num_experts, most + 1], that 0 .. most tokens choose an expert; more never do. order: int64
    [num_experts], the hottest expert first. beyond: float64 [num_experts + 1], that any expert is touched but the n
    hottest. touches: the same for any set of experts.
    """

    tokens: int
    chances: Floats
    order: NDArray[np.int64]
    beyond: Floats
    touches: Callable[[Mask], float]

    @property
    def touch(self) -> Floats:
        """float64 [num_experts]: the probability that each expert is touched."""
        touched: Floats = 1.0 - self.chances[:, 0]
        return touched


def neutral_share(num_experts: int, top_k: int) -> Floats:
    """Every expert alike."""
    return np.full(num_experts, top_k / max(num_experts, 1))


def skewed_share(num_experts: int, top_k: int) -> Floats:
    """As uneven as models often are, over experts in no order."""
    weights = np.random.default_rng(_SEED).permutation(np.arange(1.0, num_experts + 1)) ** -_TYPICAL
    share: Floats = np.minimum(weights * (top_k / weights.sum()), 1.0)
    return share


def share_of(trace: RoutingTrace, layer: int, phases: tuple[Phase, ...]) -> Floats:
    """float64 [num_experts], adds up to top_k: how often a token chooses each expert of the layer, the trace's MoE
    layer of that index; by the first of the phases that was recorded."""
    neutral = neutral_share(trace.num_experts, trace.top_k)
    for phase in phases:
        counts, tokens = trace.phases[phase].counts[layer], float(trace.phases[phase].tokens[layer])
        if tokens > 0 and counts.sum() > 0:
            counted = counts * (trace.top_k * tokens / counts.sum())
            share: Floats = np.minimum((counted + PRIOR_TOKENS * neutral) / (tokens + PRIOR_TOKENS), 1.0)
            return share
    return neutral


def hottest(share: Floats) -> NDArray[np.int64]:
    """The experts by their share, the hottest first; equal ones by their number."""
    return np.argsort(-share, kind="stable")


def independent(share: Floats, tokens: int) -> Demand:
    """Each token chooses for itself. share: float64 [num_experts], adds up to top_k, a whole number."""
    top_k, order = round(float(share.sum())), hottest(share)
    odds = np.minimum(share, 1 - 1e-9) / (1 - np.minimum(share, 1 - 1e-9))
    ways = _ways(odds[order], top_k)

    def touches(mask: Mask) -> float:
        return float(1 - (_ways(odds[~mask], top_k)[-1] / ways[-1]) ** tokens)

    return Demand(tokens, _binomial(share, tokens), order, 1 - (ways / ways[-1]) ** tokens, touches)


def _ways(odds: Floats, top_k: int) -> Floats:
    """float64 [n + 1]: the sum over all choices of top_k among the first 0 .. n of the product of their odds.

    A token's choice is taken as n independent ones of which exactly top_k came true (a conditional Poisson design), so
    the probability that it stays among some experts is their sum over that of all. Exact where all are alike.
    """
    sums, result = np.zeros(top_k + 1), np.zeros(len(odds) + 1)
    sums[0], result[0] = 1.0, float(top_k == 0)
    for number, odd in enumerate(odds):
        sums[1:] += odd * sums[:-1]
        result[number + 1] = sums[-1]
    return result


def _binomial(share: Floats, tokens: int) -> Floats:
    """float64 [num_experts, most + 1]: that 0 .. most of the tokens choose an expert; no expert gets more."""
    alike, where = np.unique(np.clip(share, 1e-300, 1 - 1e-16), return_inverse=True)
    widest = tokens * alike[-1] + _FAR * np.sqrt(tokens * alike[-1] * (1 - alike[-1])) + _FAR
    counts = np.arange(min(tokens, int(widest)) + 1)
    ways = gammaln(tokens + 1) - gammaln(counts + 1) - gammaln(tokens - counts + 1)
    for_all, for_each = tokens * np.log1p(-alike), np.log(alike) - np.log1p(-alike)
    chances: Floats = np.exp(ways + for_all[:, None] + for_each[:, None] * counts)[where]
    return chances


class Steps:
    """Steps drawn from a trace's sample. Always the same ones."""

    def __init__(self, trace: RoutingTrace) -> None:
        self._trace = trace
        self._drawn: dict[int, NDArray[np.int64]] = {}

    def enough(self, tokens: int) -> bool:
        """Whether the sample has so many sequences, and long enough ones, for steps of so many tokens."""
        trace = self._trace
        seen = len(trace.sample) * trace.top_k >= ENOUGH * trace.num_experts
        return seen and len(trace.starts) >= tokens

    def replay(self, layer: int, share: Floats, tokens: int) -> Demand:
        """layer: index among the trace's. share: by which experts are ordered."""
        experts, order = self._trace.num_experts, hottest(share)
        chosen = self._trace.sample[self._steps(tokens), layer].reshape(-1, tokens * self._trace.top_k).astype(np.int64)
        steps = len(chosen)
        per_expert = np.bincount((chosen + experts * np.arange(steps)[:, None]).ravel(), minlength=steps * experts)
        cells = np.tile(np.arange(experts) * (tokens + 1), steps) + per_expert
        chances = np.bincount(cells, minlength=experts * (tokens + 1)).reshape(experts, tokens + 1) / steps
        rank = np.empty(experts, np.int64)
        rank[order] = np.arange(experts)
        coldest = np.bincount(rank[chosen].max(axis=1), minlength=experts)
        beyond = np.append(np.cumsum(coldest[::-1])[::-1], 0) / steps
        return Demand(tokens, chances, order, beyond, lambda mask: float(mask[chosen].any(axis=1).mean()))

    def _steps(self, tokens: int) -> NDArray[np.int64]:
        """int64 [steps, tokens]: numbers of the sample's tokens, those of a step from different sequences.

        A sequence comes as often as it is long.
        """
        if tokens not in self._drawn:
            self._drawn[tokens] = self._draw(tokens)
        return self._drawn[tokens]

    def _draw(self, tokens: int) -> NDArray[np.int64]:
        total = len(self._trace.sample)
        if tokens == 1:
            return np.arange(0, total, -(-total // _STEPS))[:, None]
        random = np.random.default_rng([_SEED, tokens])
        lengths = np.diff(np.append(self._trace.starts, total))
        with np.errstate(divide="ignore"):
            keys = np.log(lengths) + random.gumbel(size=(_STEPS, len(lengths)))  # the largest: drawn by length
        sequences = np.argsort(-keys, axis=1)[:, :tokens]
        places = (random.random((_STEPS, tokens)) * lengths[sequences]).astype(np.int64)
        drawn: NDArray[np.int64] = self._trace.starts[sequences] + places
        return drawn
