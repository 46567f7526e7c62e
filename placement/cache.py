"""Caches of experts that replay runs: rows of slots that keep by recency, use or both, and the best that could be."""

from heapq import heappop, heappush
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Ranking = Literal["lru", "lfu", "lfru"]

NEVER = np.iinfo(np.int64).max
_TICK_BITS = 30  # of a score: the last use orders what uses do not
_AGE_PLACES = 20  # binary places of uses over age


class Cache(Protocol):
    """Looks up what one step wants, row by row, then changes what it holds."""

    def step(self, rows: Ints, keys: Ints, tick: int, now: int) -> tuple[Bools, Bools]:
        """Which of the keys were held, and which others were brought in. rows ascend; the touches count from `tick`."""


class SlotCache:
    """Rows of slots, each with victims of its own.

    A key that is brought in takes a free slot, else that of the least score among those that are not wanted with it:
    lru: last use; lfu: uses since it came in; lfru: these over the steps since its last use. Of equals the one used
    longest ago goes. max_loads: the most keys brought into a row at a time, the
    first that are named. initial: bool [rows, keys], what lies there at first, unused; the first keys go first.
    """

    def __init__(self, slots: Ints, ranking: Ranking, initial: Bools, max_loads: int | None = None) -> None:
        rows, most = len(slots), max(int(slots.max(initial=0)), 1)
        free = np.arange(most) - most - 1  # below any tick: the first free slot first
        self._ranking, self._limit = ranking, most if max_loads is None else min(max_loads, most)
        self._missing = np.arange(most) >= slots[:, None]
        self._where = np.full(initial.shape, -1, np.int64)
        self._held = np.full((rows, most), -1, np.int64)
        self._uses = np.zeros((rows, most), np.int64)
        self._last = np.tile(free, (rows, 1))
        self._seen = np.full((rows, most), -1, np.int64)
        row, key = np.nonzero(initial)
        slot = np.arange(len(row)) - np.searchsorted(row, row)
        fits = slot < slots[row]
        self._replace(row[fits], slot[fits], key[fits])

    def step(self, rows: Ints, keys: Ints, tick: int, now: int) -> tuple[Bools, Bools]:
        slots = self._where[rows, keys]
        hits = slots >= 0
        loads = np.zeros(len(keys), np.bool_)
        self._touch(rows[hits], slots[hits], tick + np.flatnonzero(hits), now)
        missed = np.flatnonzero(~hits)
        rank = np.arange(len(missed)) - np.searchsorted(rows[missed], rows[missed])
        missed, rank = missed[rank < self._limit], rank[rank < self._limit]
        if not len(missed):
            return hits, loads
        score = _score(self._ranking, self._uses, np.maximum(now - self._seen, 1), self._last)
        score[self._missing | (self._last >= tick)] = NEVER  # what is wanted now stays
        victims = _least(score, int(rank.max()) + 1)[rows[missed], rank]
        taken = score[rows[missed], victims] != NEVER
        missed, victims = missed[taken], victims[taken]
        self._replace(rows[missed], victims, keys[missed])
        self._touch(rows[missed], victims, tick + missed, now)
        loads[missed] = True
        return hits, loads

    def _touch(self, rows: Ints, slots: Ints, ticks: Ints, now: int) -> None:
        self._uses[rows, slots] += 1
        self._last[rows, slots] = ticks
        self._seen[rows, slots] = now

    def _replace(self, rows: Ints, slots: Ints, keys: Ints) -> None:
        old = self._held[rows, slots]
        gone = old >= 0
        self._where[rows[gone], old[gone]] = -1
        self._where[rows, keys] = slots
        self._held[rows, slots] = keys
        self._uses[rows, slots] = 0


class PooledCache:
    """One row of slots for all layers, by the rules of `SlotCache`. The layers of a step come one after the other, so
    what it has not touched yet keeps its order until the next step, and only what it has touched is ordered anew."""

    def __init__(self, slots: int, ranking: Ranking, initial: Bools, max_loads: int | None = None) -> None:
        self._ranking, self._limit = ranking, slots if max_loads is None else min(max_loads, slots)
        first = np.flatnonzero(initial)[:slots].tolist()
        self._where = {key: slot for slot, key in enumerate(first)}
        self._held: list[int] = first + [-1] * (slots - len(first))
        self._uses, self._seen = [0] * slots, [-1] * slots
        self._last = list(range(-slots - 1, -1))
        self._now = -1
        self._fresh: list[tuple[int, int]] = []  # a heap of scores and slots that this step has touched
        self._old: list[tuple[int, int]] = []  # those before it, the least last

    def step(self, rows: Ints, keys: Ints, tick: int, now: int) -> tuple[Bools, Bools]:
        if now != self._now:
            self._begin(now)
        wanted = keys.tolist()
        hits, loads = np.zeros(len(wanted), np.bool_), np.zeros(len(wanted), np.bool_)
        touched = []
        for place, key in enumerate(wanted):
            if key in self._where:
                hits[place] = True
                touched.append(self._touch(self._where[key], tick + place))
        for place in np.flatnonzero(~hits).tolist()[: self._limit]:
            slot = self._victim()
            if slot is None:
                break
            loads[place] = True
            self._where.pop(self._held[slot], None)
            self._held[slot], self._where[wanted[place]], self._uses[slot] = wanted[place], slot, 0
            touched.append(self._touch(slot, tick + place))
        for slot in touched:  # only now: what is wanted together does not make way for each other
            heappush(self._fresh, (int(_score(self._ranking, self._uses[slot], 1, self._last[slot])), slot))
        return hits, loads

    def _begin(self, now: int) -> None:
        age = np.maximum(now - np.array(self._seen, np.int64), 1)
        scores = _score(self._ranking, np.array(self._uses, np.int64), age, np.array(self._last, np.int64))
        order = np.argsort(-scores)
        self._old = list(zip(scores[order].tolist(), order.tolist(), strict=True))
        self._now, self._fresh = now, []

    def _touch(self, slot: int, tick: int) -> int:
        self._uses[slot] += 1
        self._last[slot], self._seen[slot] = tick, self._now
        return slot

    def _victim(self) -> int | None:
        while self._old and self._seen[self._old[-1][1]] == self._now:
            self._old.pop()
        if self._old and (not self._fresh or self._old[-1][0] < self._fresh[0][0]):
            return self._old.pop()[1]
        return heappop(self._fresh)[1] if self._fresh else None


class BestCache:
    """What no cache of so many slots can beat (Belady): it holds the keys that are wanted soonest and passes others by.

    It starts with the first that will be wanted. following: int64 [touches], when the key of each is wanted again;
    first: int64 [rows, keys], when each is wanted first; NEVER if not.
    """

    def __init__(self, slots: Ints, following: Ints, first: Ints) -> None:
        self._slots, self._following, self._next = slots, following, first.copy()
        self._held = self._soonest(np.ones(first.shape, np.bool_))

    def step(self, rows: Ints, keys: Ints, tick: int, now: int) -> tuple[Bools, Bools]:
        hits = self._held[rows, keys]
        self._next[rows, keys] = self._following[tick : tick + len(keys)]
        if hits.all():
            return hits, np.zeros(len(keys), np.bool_)
        candidates = self._held.copy()
        candidates[rows, keys] = True
        self._held = self._soonest(candidates)
        return hits, self._held[rows, keys] & ~hits

    def _soonest(self, candidates: Bools) -> Bools:
        when = np.where(candidates, self._next, NEVER)
        padded = np.concatenate([np.full((len(when), 1), -1), np.sort(when, axis=1)], axis=1)
        last = padded[np.arange(len(when)), np.minimum(self._slots, when.shape[1])]
        return np.asarray((when <= last[:, None]) & (when < NEVER))


def _score(ranking: Ranking, uses: Any, age: Any, last: Any) -> Any:
    """Of numbers or int64 arrays: what has the least goes first. age: steps since the last use, at least 1."""
    if ranking == "lru":
        return +last  # a copy, which may be changed
    return ((uses if ranking == "lfu" else (uses << _AGE_PLACES) // age) << _TICK_BITS) + last


def _least(scores: Ints, count: int) -> Ints:
    """int64 [rows, count]: the slots of the least scores in each row, ascending."""
    count = min(count, scores.shape[1])
    if count * 8 > scores.shape[1]:
        return np.asarray(np.argsort(scores, axis=1, kind="stable")[:, :count])
    some = np.argpartition(scores, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(scores, some, axis=1), axis=1)
    return np.asarray(np.take_along_axis(some, order, axis=1))
