"""What-if outcomes of policies on small models."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.draft import Wish
from isotherm.placement.hardware import HardwareProfile
from isotherm.placement.held_out import halves, neutral_trace
from isotherm.placement.hit_rates import hit_rates
from isotherm.placement.ledger import CONTEXT_BYTES, HEADROOM_BYTES, activation_bytes
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.planner import Budgets, Planned
from isotherm.placement.replay import CacheKind
from isotherm.placement.shape import CPU
from isotherm.placement.simulate import POLICIES, Outcome, Simulator
from isotherm.placement.slots import even_slots
from isotherm.placement.solve import Solution
from isotherm.placement.threads import with_threads
from isotherm.placement.trace import RoutingTrace
from support.cost_cases import accelerator, cpu, machine, model
from support.drawn_traffic import drawn, skewed, trace_of

LAYERS, EXPERTS, TOP_K = 2, 16, 2
SHAPE = model(LAYERS, EXPERTS, TOP_K)
HARDWARE = machine(accelerator(to_gb_s=0.5), spread=0.05)  # too slow a link to stream layers over
KIB = 1024
DENSE = 2 * 200 * KIB + 1000 * KIB  # of both layers, and the head


def wish(experts: int, streams: int = 1) -> Wish:
    """With room for so many experts of all layers on the accelerator, beside what each step needs."""
    traffic = Traffic(streams=streams, context=16, prompt=1, chunk=1)
    fixed = CONTEXT_BYTES + HEADROOM_BYTES + activation_bytes(SHAPE, 1, 1)
    kv = 16 * streams * SHAPE.kv_bytes
    size = fixed + DENSE + kv + experts * 30 * KIB if experts else 0
    return Wish(traffic=traffic, context=16, positions=16 * streams, ram=1 << 34, vram=(size,), rows=1)


HALF = wish(LAYERS * EXPERTS // 2)
SOME = wish(LAYERS * EXPERTS - 4)  # 28 or, where a fast link lets a layer's be streamed, 12


def hottest_pinned(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
    """As many of each layer as there is room for, by their share, beside all dense parts and the head."""
    room = budgets.vram[0] - DENSE - kv_positions * SHAPE.kv_bytes if budgets.vram[0] > 0 else 0
    device = 0 if room else CPU
    slots = room // (LAYERS * 30 * KIB)
    rank = [np.argsort(np.argsort(-cost.share(layer), kind="stable")) for layer in range(LAYERS)]
    experts = tuple(np.where(own < slots, 0, CPU).astype(np.int8) for own in rank)
    return Planned(
        placement=Placement(dense=(device,) * LAYERS, experts=experts, embed=CPU, head=device),
        policy="static",
        solution=Solution(np.zeros(0, np.int64), 0.0, 0.0, np.zeros(0)),
        prices_ms_per_gib=(0.0, 0.0),
        considered=(),
        reason="",
        slots=(0,) * LAYERS,
        from_disk=(0,) * LAYERS,
        disk_ms=0.0,
    )


def run(
    trace: RoutingTrace | None,
    own: Wish,
    policies: Sequence[CacheKind] = POLICIES,
    hardware: HardwareProfile = HARDWARE,
) -> dict[CacheKind, Outcome]:
    return {found.policy: found for found in Simulator(SHAPE, trace, hottest_pinned).run(hardware, own, policies)}


def steady(tokens: int = 600, seed: int = 0) -> RoutingTrace:
    return trace_of(drawn(skewed(LAYERS, EXPERTS), tokens, TOP_K, seed=seed), EXPERTS, tuple(range(0, tokens, 50)))


def moved() -> RoutingTrace:
    """Its second half goes to the experts that its first half leaves."""
    first = drawn(np.where(np.arange(EXPERTS) < 8, 1.0, 1e-9) * np.ones((LAYERS, 1)), 300, TOP_K)
    return trace_of(np.concatenate([first, first + 8]), EXPERTS)


def test_without_an_accelerator_all_policies_are_the_cpu() -> None:
    trace = steady()
    found = run(trace, wish(0))
    learned, _ = halves(trace)
    expected = CostModel(SHAPE, HARDWARE, learned).decode(Placement.on_cpu(SHAPE), wish(0).traffic)
    for outcome in found.values():
        assert outcome.decode.value == pytest.approx(expected.value, rel=0.01)
        assert (outcome.hit_rate, outcome.resident, outcome.link_mb_per_token) == (0, 0, 0)
        assert outcome.ram_mb_per_token == pytest.approx(LAYERS * TOP_K * 30 * KIB / 1e6)
        assert outcome.misses == "computed"


def test_with_room_for_all_every_policy_hits() -> None:
    for outcome in run(steady(), wish(LAYERS * EXPERTS)).values():
        assert outcome.hit_rate == 1
        assert outcome.resident == LAYERS * EXPERTS
        assert (outcome.link_mb_per_token, outcome.ram_mb_per_token) == (0, 0)


def test_all_policies_have_the_same_memory() -> None:
    assert {outcome.resident for outcome in run(steady(), HALF).values()} == {LAYERS * EXPERTS // 2}


def test_what_the_static_plan_leaves_free_is_there_for_caches() -> None:
    def nothing_pinned(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
        planned = hottest_pinned(cost, traffic, budgets, kv_positions)
        bare = tuple(np.full(EXPERTS, CPU, np.int8) for _ in range(LAYERS))
        return replace(planned, placement=replace(planned.placement, experts=bare))

    simulator = Simulator(SHAPE, steady(), nothing_pinned)
    static, cached = simulator.run(HARDWARE, HALF, ["static", "lru"])
    assert (static.resident, cached.resident) == (0, LAYERS * EXPERTS // 2)


def test_more_memory_is_never_slower_for_pins() -> None:
    rates = [run(steady(), wish(count), ["static"])["static"].decode.value for count in (2, 8, 16, 24, 32)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_pins_miss_what_was_not_learned_and_caches_follow() -> None:
    found = run(moved(), HALF)
    assert found["static"].hit_rate < 0.1
    assert found["lru"].hit_rate > 0.9
    assert found["lru"].decode.value > found["static"].decode.value


def test_a_bound_bounds() -> None:
    found = run(steady(), HALF, (*POLICIES, "belady"))
    assert max(outcome.hit_rate for outcome in found.values()) == found["belady"].hit_rate


def test_misses_are_fetched_where_the_link_is_fast_and_computed_where_it_is_slow() -> None:
    def misses(to_gb_s: float) -> str:
        hardware = machine(accelerator(to_gb_s=to_gb_s), call_us=1000)
        return run(steady(), SOME, ["lru"], hardware)["lru"].misses

    assert misses(100.0) == "fetched"
    assert misses(0.001) == "computed"


def test_what_the_cpu_reads_and_the_link_brings_is_what_was_missing() -> None:
    hardware = machine(accelerator(to_gb_s=100.0), call_us=1000)
    found = run(steady(), SOME, ["lru"], hardware)["lru"]
    missing = (1 - found.hit_rate) * LAYERS * TOP_K * 30 * KIB / 1e6
    assert found.link_mb_per_token + found.ram_mb_per_token == pytest.approx(missing)


def test_an_interval_is_that_of_the_cost_model() -> None:
    decode = run(steady(), HALF, ["static"])["static"].decode
    assert decode.low < decode.value < decode.high
    assert decode.value == pytest.approx(1e3 / decode.step_ms)


def test_streams_are_counted_together() -> None:
    one, four = (run(steady(), wish(LAYERS * EXPERTS // 2, streams), ["static"])["static"] for streams in (1, 4))
    assert four.decode.value == pytest.approx(4e3 / four.decode.step_ms)
    assert four.decode.step_ms > one.decode.step_ms


def test_without_a_trace_every_set_is_as_good_as_its_size() -> None:
    found = run(None, HALF)
    share = found["static"].resident / (LAYERS * EXPERTS)
    for outcome in found.values():
        assert outcome.hit_rate == pytest.approx(share, abs=0.05)


def test_equal_input_gives_equal_outcomes() -> None:
    assert run(steady(), HALF) == run(steady(), HALF)


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="small has no experts"):
        Simulator(model(2, 0, 0))


def test_a_trace_too_short_for_the_streams_is_refused() -> None:
    with pytest.raises(ValueError, match=r"holds 100 decoded tokens, too few to replay 64 streams .* record 128"):
        run(steady(100), wish(LAYERS * EXPERTS // 2, 64), ["lru"])
    assert run(steady(128), wish(LAYERS * EXPERTS // 2, 64), ["lru"])


def test_halves_count_what_each_has() -> None:
    trace = trace_of(np.array([[[0, 1]], [[1, 2]], [[3, 2]]]), 4, (0, 2))
    first, second = halves(trace)
    assert first.phases["decode"].counts.tolist() == [[1, 1, 0, 0]]
    assert second.phases["decode"].counts.tolist() == [[0, 1, 2, 1]]
    assert (first.starts.tolist(), second.starts.tolist()) == ([0], [0, 1])
    assert second.phases["decode"].tokens.tolist() == [2]


def test_a_neutral_trace_chooses_all_alike_and_none_twice() -> None:
    sample = neutral_trace(SHAPE).sample
    assert all(len(set(row)) == TOP_K for row in sample.reshape(-1, TOP_K).tolist())
    uses = np.bincount(sample.reshape(-1), minlength=EXPERTS) / sample.size
    assert uses == pytest.approx(np.full(EXPERTS, 1 / EXPERTS), rel=0.3)  # each about 128 times, give or take 11


def placed(*layers: Sequence[int]) -> Placement:
    experts = tuple(np.array(own, np.int8) for own in layers)
    return replace(Placement.on_cpu(model(len(layers), len(layers[0]), 1)), experts=experts)


def test_slots_are_spread_evenly() -> None:
    shape = model(3, 4, 1)
    device, slots = even_slots(shape, placed([0, 0, 0, 0], [0, CPU, CPU, CPU], [CPU] * 4), (29 * KIB,))
    assert (device.tolist(), slots.tolist()) == ([0, 0, 0], [2, 2, 1])


def test_accelerators_get_layers_by_their_memory() -> None:
    shape = model(4, 4, 1)
    device, slots = even_slots(shape, placed([0, 0, 0, 1], [0, 0, 0, CPU], [1, CPU, CPU, CPU], [CPU] * 4), (0, 0))
    assert device.tolist() == [0, 0, 0, 1]
    assert slots.tolist() == [2, 2, 2, 2]


def test_layers_of_other_sizes_never_take_more_than_there_is() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        layers = tuple(
            replace(SHAPE.layers[0], expert=SHAPE.layers[0].expert[: rng.integers(1, 4)], num_experts=6)
            for _ in range(5)
        )
        shape = replace(SHAPE, layers=layers)
        where = tuple(rng.integers(CPU, 2, 6).astype(np.int8) for _ in layers)
        device, slots = even_slots(shape, replace(Placement.on_cpu(shape), experts=where), (45 * KIB, -9))
        for card, free in enumerate((45 * KIB, 0)):
            held = [int((own == card).sum()) for own in where]
            room = free + sum(layer.expert_bytes * count for layer, count in zip(layers, held, strict=True))
            used = sum(layers[row].expert_bytes * int(slots[row]) for row in range(5) if device[row] == card)
            assert used <= room
        assert slots.max() <= 6


def test_threads_change_what_they_can() -> None:
    base = cpu(read_gb_s=1.0)
    four = replace(base, threads=4, cores=4, read_gb_s={n: replace(base.read_gb_s[1], value=v) for n, v in RATES})
    hardware = replace(HARDWARE, cpu=four)
    two = with_threads(hardware, 3).cpu
    assert two.threads == 3
    assert two.products["q4"].read_gb_s.value == pytest.approx(3.5 / 4)  # between 3 and 4 GB/s
    assert two.products["q4"].block_ns_per_kib[0].value == pytest.approx(200 * 4 / 3)
    assert two.call_us == four.call_us
    assert with_threads(hardware, 4) is hardware
    with pytest.raises(ValueError, match="known with 1 to 4 threads, not with 5"):
        with_threads(hardware, 5)


RATES = ((1, 1.5), (2, 3.0), (4, 4.0))


def test_hit_rates_of_a_trace_alone_grow_with_what_is_kept() -> None:
    rows = list(hit_rates(steady(), ["static", "lru", "belady"], 2))
    for policy in ("static", "lru", "belady"):
        own = [row for row in rows if row.policy == policy]
        assert [row.slots for row in own] == [1, 2, 3, 5, 6, 8, 10, 11, 13, 14]
        assert [row.hit_rate for row in own] == sorted(row.hit_rate for row in own)
    assert all(row.loads_per_token == 0 for row in rows if row.policy == "static")
