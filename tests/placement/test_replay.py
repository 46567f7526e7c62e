"""Caches over a trace, against plain ones."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from isotherm.placement.replay import KINDS, CacheKind, Touches, hottest, replay, touches
from support.drawn_traffic import drawn, skewed, trace_of

LAYERS, EXPERTS, TOP_K, TOKENS = 3, 12, 3, 160


@pytest.fixture(scope="module")
def touched() -> Touches:
    return touches(trace_of(drawn(skewed(LAYERS, EXPERTS), TOKENS, TOP_K, seed=5), EXPERTS))


Group = tuple[int, Sequence[tuple[int, int]]]  # a step, and the layers and experts that it wants at once


def groups_of(touched: Touches) -> list[Group]:
    bounds = touched.offsets
    return [
        (place // touched.layers, [(place % touched.layers, int(e)) for e in touched.experts[start:stop]])
        for place, (start, stop) in enumerate(pairwise(bounds))
    ]


class PlainCache:
    """One list of entries; evicts by the definition."""

    def __init__(self, kind: str, slots: int, max_loads: int | None) -> None:
        self.kind, self.slots, self.max_loads = kind, slots, max_loads
        self.uses: dict[tuple[int, int], int] = {}
        self.used: dict[tuple[int, int], tuple[int, int]] = {}  # step and clock of the last use

    def rank(self, key: tuple[int, int], step: int) -> tuple[int, int]:
        last_step, clock = self.used[key]
        uses = self.uses[key]
        score = {"lru": 0, "lfu": uses, "lfru": (uses << 20) // max(step - last_step, 1)}[self.kind]
        return score, clock

    def want(self, step: int, keys: Sequence[tuple[int, int]], clock: int) -> tuple[list[bool], list[bool]]:
        hits = [key in self.uses for key in keys]
        loads = [False] * len(keys)
        for place, key in enumerate(keys):
            if hits[place]:
                self.uses[key] += 1
                self.used[key] = (step, clock + place)
        for place, key in enumerate(keys):
            if hits[place] or (self.max_loads is not None and sum(loads) >= self.max_loads):
                continue
            if len(self.uses) == self.slots:
                others = [held for held in self.uses if held not in keys]
                if not others:
                    continue
                victim = min(others, key=lambda held: self.rank(held, step))
                del self.uses[victim], self.used[victim]
            self.uses[key], self.used[key] = 1, (step, clock + place)
            loads[place] = True
        return hits, loads


def plain(touched: Touches, kind: str, slots: int, *, pooled: bool, max_loads: int | None = None) -> tuple[object, ...]:
    caches = [PlainCache(kind, slots, max_loads) for _ in range(1 if pooled else touched.layers)]
    hits: list[bool] = []
    loads: list[bool] = []
    for step, keys in groups_of(touched):
        found = caches[0 if pooled else keys[0][0]].want(step, keys, len(hits))
        hits += found[0]
        loads += found[1]
    return hits, loads


@pytest.mark.parametrize("kind", ["lru", "lfu", "lfru"])
@pytest.mark.parametrize("slots", [1, 4, 7, 12])
@pytest.mark.parametrize("max_loads", [None, 1])
def test_a_cache_in_each_layer_is_the_plain_one(touched: Touches, kind: CacheKind, slots: int, max_loads: int) -> None:
    found = replay(touched, kind, slots, max_loads=max_loads)
    assert (found.hits.tolist(), found.loads.tolist()) == plain(touched, kind, slots, pooled=False, max_loads=max_loads)


@pytest.mark.parametrize("kind", ["lru", "lfu", "lfru"])
@pytest.mark.parametrize("slots", [2, 8, 14, 36])
@pytest.mark.parametrize("max_loads", [None, 1])
def test_a_cache_of_all_layers_is_the_plain_one(
    touched: Touches, kind: CacheKind, slots: int, max_loads: int | None
) -> None:
    found = replay(touched, kind, slots, pooled=True, max_loads=max_loads)
    assert (found.hits.tolist(), found.loads.tolist()) == plain(touched, kind, slots, pooled=True, max_loads=max_loads)


def test_lru_of_single_choices_is_that_of_the_textbook() -> None:
    sample = drawn(skewed(1, 9, power=0.7), 300, 1, seed=2)
    order: list[int] = []
    hits = []
    for expert in sample[:, 0, 0].tolist():
        hits.append(expert in order)
        order = [*[other for other in order if other != expert][-3:], expert]
    assert replay(touches(trace_of(sample, 9)), "lru", 4).hits.tolist() == hits


def test_a_static_set_hits_where_it_holds_the_expert(touched: Touches) -> None:
    pinned = np.zeros((LAYERS, EXPERTS), bool)
    pinned[0, 4] = pinned[2, 7] = True
    found = replay(touched, "static", 0, pinned=pinned)
    wanted = [key in {(0, 4), (2, 7)} for _, keys in groups_of(touched) for key in keys]
    assert found.hits.tolist() == wanted
    assert not found.loads.any()


def test_a_seeded_cache_keeps_its_seed_and_loads_no_more_than_it_may(touched: Touches) -> None:
    pinned = hottest(np.bincount(touched.layer * EXPERTS + touched.experts).reshape(LAYERS, EXPERTS).astype(float), 3)
    found = replay(touched, "seeded", 6, pinned=pinned, max_loads=1)
    assert found.hits[pinned[touched.layer, touched.experts]].all()
    assert not found.loads[pinned[touched.layer, touched.experts]].any()
    assert touched.sums(found.loads).max() == 1


def test_the_tail_of_a_seeded_cache_is_a_cache_of_the_others(touched: Touches) -> None:
    pinned = np.zeros((LAYERS, EXPERTS), bool)
    pinned[:, :2] = True
    found = replay(touched, "seeded", 5, pinned=pinned)
    tail = [PlainCache("lru", 3, None) for _ in range(LAYERS)]
    hits: list[bool] = []
    for step, keys in groups_of(touched):
        others = [key for key in keys if key[1] >= 2]
        seen = dict(zip(others, tail[keys[0][0]].want(step, others, len(hits))[0], strict=True))
        hits += [seen.get(key, True) for key in keys]
    assert found.hits.tolist() == hits


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 6, 10])
def test_no_cache_beats_the_bound(touched: Touches, slots: int, pooled: bool) -> None:
    slots = slots * (LAYERS if pooled else 1)
    counts = np.bincount(touched.layer * EXPERTS + touched.experts).reshape(LAYERS, EXPERTS).astype(float)
    bound = replay(touched, "belady", slots, pooled=pooled).hits.sum()
    for kind in KINDS:
        part = slots if kind == "static" else slots // 2
        pinned = hottest(counts, part, pooled=pooled) if kind in ("static", "seeded") else None
        assert replay(touched, kind, slots, pooled=pooled, pinned=pinned).hits.sum() <= bound


def test_the_bound_is_reached_by_the_best_of_all_caches() -> None:
    sample = np.array([0, 1, 2, 0, 1, 3, 0, 2]).reshape(-1, 1, 1)
    step_wants = sample.reshape(-1).tolist()

    def best(held: frozenset[int], step: int) -> int:  # tries whatever may be held next
        if step == len(step_wants):
            return 0
        may_hold = held | {step_wants[step]}
        nexts = [may_hold] if len(may_hold) <= 2 else [may_hold - {gone} for gone in may_hold]
        return (step_wants[step] in held) + max(best(frozenset(then), step + 1) for then in nexts)

    starts = [frozenset({a, b}) for a in range(4) for b in range(a)]
    bound = replay(touches(trace_of(sample, 4)), "belady", 2).hits.sum()
    assert bound == max(best(start, 0) for start in starts)


def test_slots_may_differ_between_layers(touched: Touches) -> None:
    found = replay(touched, "lru", np.array([0, 4, EXPERTS]))
    alone = replay(touched, "lru", 4)
    assert not found.hits[touched.layer == 0].any()
    assert (found.hits == alone.hits)[touched.layer == 1].all()
    assert found.loads[touched.layer == 2].sum() == EXPERTS


def test_a_cache_smaller_than_a_token_wants_hits_nothing_when_layers_share_it() -> None:
    sample = np.broadcast_to(np.array([0, 1]), (20, 4, 2))  # the same experts, token after token
    touched = touches(trace_of(sample, 4))
    assert replay(touched, "lru", 6, pooled=True).hit_rate() == 0
    assert replay(touched, "lru", 2).hit_rate(first=1) == 1


def test_streams_of_a_step_touch_an_expert_once() -> None:
    sample = np.array([[0, 1], [2, 3], [1, 0], [4, 3]]).reshape(4, 1, 2)
    touched = touches(trace_of(sample, 5), streams=2)  # tokens 0 and 2, then 1 and 3
    assert touched.steps == 2
    assert touched.experts.tolist() == [0, 1, 2, 4, 3]
    assert touched.tokens.tolist() == [2, 2, 1, 1, 2]
    assert touched.offsets.tolist() == [0, 2, 5]


def test_rates_leave_out_the_first_steps() -> None:
    sample = np.array([0, 1, 0, 0]).reshape(4, 1, 1)
    found = replay(touches(trace_of(sample, 2)), "lru", 1)
    assert found.hit_rate() == 1 / 4
    assert found.hit_rate(first=2) == 1 / 2
    assert found.loads_per_step(first=2) == 1 / 2
    assert found.misses.tolist() == [[1], [1], [1], [0]]


def test_the_hottest_are_taken_in_each_layer_or_of_all() -> None:
    counts = np.array([[5.0, 1.0, 4.0], [3.0, 9.0, 3.0]])
    assert hottest(counts, 2).tolist() == [[True, False, True], [True, True, False]]
    assert hottest(counts, 2, pooled=True).tolist() == [[True, False, False], [False, True, False]]


def test_a_cache_may_begin_with_what_is_known_to_be_hot() -> None:
    sample = np.array([3, 0, 1, 3]).reshape(-1, 1, 1)
    initial = np.array([[True, False, True, True]])
    found = replay(touches(trace_of(sample, 4)), "lru", 3, initial=initial)
    assert found.hits.tolist() == [True, True, False, True]  # 1 takes the place of 2, which was never used
    few = replay(touches(trace_of(sample, 4)), "lru", 1, initial=initial)
    assert few.hits.tolist() == [False, False, False, False]
