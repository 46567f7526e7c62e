"""Replay of a cache of experts over the choices that a trace recorded."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .cache import NEVER, BestCache, Cache, PooledCache, SlotCache
from .trace import RoutingTrace

CacheKind = Literal["static", "lru", "lfu", "lfru", "seeded", "belady"]
KINDS: tuple[CacheKind, ...] = ("static", "lru", "lfu", "lfru", "seeded", "belady")


@dataclass(frozen=True, slots=True, kw_only=True)
class Touches:
    """Which experts each step touches, each once. experts, tokens: int64 [touches], the expert and how many tokens of
    the step chose it; offsets: int64 [steps * layers + 1], where the experts of a step and layer begin; highest ranks
    come first."""

    steps: int
    layers: int
    num_experts: int
    experts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def sums(self, values: NDArray[np.float64] | NDArray[np.bool_]) -> NDArray[np.float64]:
        """float64 [steps, layers]: sums of what belongs to touches."""
        return np.add.reduceat(values.astype(np.float64), self.offsets[:-1]).reshape(self.steps, self.layers)

    def then(self, later: "Touches") -> "Touches":
        """These steps and then those of the same model."""
        return Touches(
            steps=self.steps + later.steps,
            layers=self.layers,
            num_experts=self.num_experts,
            experts=np.concatenate([self.experts, later.experts]),
            tokens=np.concatenate([self.tokens, later.tokens]),
            offsets=np.concatenate([self.offsets, later.offsets[1:] + self.offsets[-1]]),
        )

    @property
    def layer(self) -> NDArray[np.int64]:
        """int64 [touches]: the layer of each, counted among those with experts."""
        return np.repeat(np.tile(np.arange(self.layers), self.steps), np.diff(self.offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """hits: bool [touches], it lay in the cache when the step came to the layer; loads: bool [touches], it was brought
    in then."""

    touches: Touches
    hits: NDArray[np.bool_]
    loads: NDArray[np.bool_]

    @property
    def misses(self) -> NDArray[np.float64]:
        """float64 [steps, layers]: experts that were wanted and not there."""
        return self.touches.sums(~self.hits)

    def hit_rate(self, first: int = 0) -> float:
        """Share of touched experts that lay in the cache, from step `first` on."""
        return float(self.hits[self.touches.offsets[first * self.touches.layers] :].mean())

    def loads_per_step(self, first: int = 0) -> float:
        """Mean number of experts brought in by a step, all layers together."""
        return float(self.touches.sums(self.loads)[first:].sum(axis=1).mean())


def touches(trace: RoutingTrace, streams: int = 1) -> Touches:
    """Of decode steps of so many streams, each of which goes through an equal part of the sample, which has a token for
    each at least."""
    steps = len(trace.sample) // streams
    layers, experts = len(trace.layers), trace.num_experts
    lanes = trace.sample[: steps * streams].reshape(streams, steps, layers, trace.top_k)
    chosen = lanes.transpose(1, 2, 3, 0).reshape(steps * layers, -1).astype(np.int64)
    keys = (chosen + np.arange(steps * layers)[:, None] * experts).reshape(-1)
    found, first, counts = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(first)  # as ranked, in place of by number
    groups = found // experts
    return Touches(
        steps=steps,
        layers=layers,
        num_experts=experts,
        experts=(found % experts)[order],
        tokens=counts[order].astype(np.int64),
        offsets=np.searchsorted(groups, np.arange(steps * layers + 1)),
    )


def hottest(counts: NDArray[np.float64], slots: int | NDArray[np.int64], *, pooled: bool = False) -> NDArray[np.bool_]:
    """bool [layers, experts]: those of most uses, `slots` a layer, or `slots` in all if pooled; of equals the first."""
    table = counts.reshape(1, -1) if pooled else counts
    rank = np.argsort(np.argsort(-table, axis=1, kind="stable"), axis=1, kind="stable")
    held = rank < np.broadcast_to(np.asarray(slots, np.int64), (len(table),))[:, None]
    return np.asarray(held.reshape(counts.shape))


def replay(
    touched: Touches,
    kind: CacheKind,
    slots: int | NDArray[np.int64],
    *,
    pooled: bool = False,
    pinned: NDArray[np.bool_] | None = None,
    initial: NDArray[np.bool_] | None = None,
    max_loads: int | None = None,
) -> Replay:
    """Run a cache with `slots` for each layer (one number for all, or int64 [layers]), or that many in all if pooled.

    static holds `pinned`, bool [layers, experts], and nothing else; seeded holds `pinned`, and the last used in the
    slots that these leave. initial: as pinned, what the others begin with, none if not given. max_loads: the most
    experts that a step brings into a layer. belady is the bound: it knows what comes, and what it should begin with.
    """
    rows, keys = _places(touched, pooled)
    shape = (1, touched.layers * touched.num_experts) if pooled else (touched.layers, touched.num_experts)
    held = np.zeros(shape, np.bool_) if pinned is None else pinned.reshape(shape)
    always = held[rows, keys]
    if kind == "static":
        return Replay(touches=touched, hits=always, loads=np.zeros(len(rows), np.bool_))
    free = np.broadcast_to(np.asarray(slots, np.int64), (shape[0],))
    begin = np.zeros(shape, np.bool_) if initial is None else initial.reshape(shape)
    if kind == "belady":
        cache: Cache = BestCache(free, *_wanted(rows * shape[1] + keys, shape))
    elif kind == "seeded":
        left = np.maximum(free - held.sum(axis=1), 0)
        cache = SlotCache(left, "lru", begin & ~held, max_loads)
    elif pooled:
        cache = PooledCache(int(free[0]), kind, begin, max_loads)
    else:
        cache = SlotCache(free, kind, begin, max_loads)
    others = np.flatnonzero(~always) if kind == "seeded" else np.arange(len(rows))
    hits, loads = always.copy(), np.zeros(len(rows), np.bool_)
    bounds = np.searchsorted(others, touched.offsets[:: 1 if pooled else touched.layers])
    hits[others], loads[others] = _run(cache, rows[others], keys[others], bounds, touched.layers if pooled else 1)
    return Replay(touches=touched, hits=hits, loads=loads)


def _run(
    cache: Cache, rows: NDArray[np.int64], keys: NDArray[np.int64], bounds: NDArray[np.int64], per_step: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Group by group, each from one of the bounds to the next; per_step: groups that one step has."""
    hits, loads = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    edges = bounds.tolist()
    for group, (start, stop) in enumerate(pairwise(edges)):
        found = cache.step(rows[start:stop], keys[start:stop], start, group // per_step)
        hits[start:stop], loads[start:stop] = found
    return hits, loads


def _places(touched: Touches, pooled: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """int64 [touches] each: the row and the key of what is touched."""
    if pooled:
        return np.zeros(len(touched.experts), np.int64), touched.layer * touched.num_experts + touched.experts
    return touched.layer, touched.experts


def _wanted(keys: NDArray[np.int64], shape: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When the key of each touch is wanted again, and when each key is wanted first; NEVER if not."""
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    following = np.full(len(keys), NEVER, np.int64)
    following[order[:-1][again]] = order[1:][again]
    first = np.full(shape[0] * shape[1], NEVER, np.int64)
    starts = np.concatenate([[True], ~again]) if len(keys) else np.zeros(0, np.bool_)
    first[keys[order][starts]] = order[starts]
    return following, first.reshape(shape)
