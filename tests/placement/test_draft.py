"""Plans made of numbers: what they hold, what they say, what they refuse."""

import re
from dataclasses import replace

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.draft import draft, model_of, overheads_of
from isotherm.placement.explain import cpu_free_layers, read_rate
from isotherm.placement.hardware import Estimate
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.planner import Budgets, Planned
from isotherm.placement.room import Alternative, FitError
from isotherm.placement.shape import CPU
from support.plans import GIB, MIB, large, layers_first, plan_of, wish, with_cards


def test_without_an_accelerator_all_lies_in_ram_and_the_plan_says_so() -> None:
    plan = plan_of()
    (ram,) = plan.ledger
    assert all(set(layer.experts) == {CPU} and layer.dense == CPU for layer in plan.layers)
    assert ram.total == large().nbytes + 1024 * large().kv_bytes + GIB // 2
    assert (dict(plan.shadow_price_ms_per_gib), dict(plan.value_ms_by_gib)) == ({}, {})
    told = " ".join(plan.reasons)
    assert "all 3.38 GiB of weights lie in RAM, and every layer is computed by one thread of round." in told
    assert "The KV cache of 1024 positions takes 0.02 GiB, 16.0 KiB each in int16." in told
    assert "`isotherm profile` would record a routing trace" in told


def test_predictions_are_the_cost_models() -> None:
    cost, asked = CostModel(large(), with_cards()), wish()
    plan = plan_of()
    decode = cost.decode(Placement.on_cpu(large()), asked.traffic)
    prefill = cost.prefill(Placement.on_cpu(large()), asked.traffic)
    assert (plan.predicted_decode_tok_s.value, plan.step_ms) == (decode.value, decode.step_ms)
    assert (plan.predicted_prefill_tok_s.low, plan.predicted_prefill_tok_s.high) == (prefill.low, prefill.high)
    assert sum(plan.parts_ms.values()) == pytest.approx(plan.step_ms)


def test_weights_and_cache_get_what_overheads_leave() -> None:
    seen: list[Budgets] = []

    def planner(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
        seen.append(budgets)
        return layers_first(cost, traffic, budgets, kv_positions)

    cost, asked = CostModel(large(), with_cards(8 * GIB)), wish([2 * GIB])
    plan = draft(cost, asked, planner=planner)
    card = plan.ledger[1]
    fixed = sum(card.of(n) for n in ("prefill staging", "activations", "accelerator context", "headroom"))
    assert seen[-1].vram == (2 * GIB - fixed,)
    draft(CostModel(large(vector_bytes=MIB), with_cards(8 * GIB)), asked, planner=planner)
    assert seen[-1].vram == (2 * GIB - fixed - MIB,)
    assert card.free >= 0
    assert all(account.free >= 0 for account in plan.ledger)


@pytest.mark.parametrize("tied", [False, True])
def test_what_fits_into_ram_to_the_byte_is_planned(tied: bool) -> None:
    shape = large(tied=tied, vector_bytes=4096)
    size = shape.nbytes + 1024 * shape.kv_bytes + GIB // 2
    (ram,) = draft(CostModel(shape, with_cards()), wish(ram=size), planner=layers_first).ledger
    assert ram.free == 0
    with pytest.raises(FitError):
        draft(CostModel(shape, with_cards()), wish(ram=size - 1), planner=layers_first)


def test_no_room_is_kept_for_streaming_where_nothing_is_streamed() -> None:
    assert plan_of([8 * GIB]).ledger[1].of("prefill staging") == 0  # all experts lie there
    slow = replace(with_cards(8 * GIB).accelerators[0], to_gb_s=Estimate(1e-6))
    hardware = replace(with_cards(), accelerators=(slow,))
    plan = draft(CostModel(large(), hardware), wish([2 * GIB]), planner=layers_first)
    assert plan.ledger[1].of("prefill staging") == 0


def test_room_is_kept_where_streaming_pays() -> None:
    plan = plan_of([2 * GIB])
    assert plan.ledger[1].of("prefill staging") == 2 * GIB // 8
    assert plan.ledger[0].of("pinned host buffers") > 0


def test_room_for_streaming_gives_way_to_weights() -> None:
    cost = CostModel(large(), with_cards(24 * GIB))
    plain = overheads_of(cost, wish([2 * GIB]), staged=False)
    ram = plain.of_ram + large().nbytes + 1024 * large().kv_bytes - (2 * GIB - plain.of_vram(0)) + 100 * MIB
    assert draft(cost, wish([2 * GIB], ram=ram + GIB), planner=layers_first).ledger[1].of("prefill staging") > 0
    assert draft(cost, wish([2 * GIB], ram=ram), planner=layers_first).ledger[1].of("prefill staging") == 0


def test_ram_for_a_larger_cache_is_not_given_to_weights() -> None:
    plain, larger = plan_of([2 * GIB]), plan_of([2 * GIB], kv_offload=GIB)
    kv = sum(larger.ledger[0].of(name) for name in ("KV cache", "KV offload"))
    assert kv == GIB and larger.ledger[1].of("KV staging") > 0
    assert [account.of("KV offload") + account.of("KV staging") for account in plain.ledger] == [0, 0]
    ram = plain.ledger[0].total + GIB // 4
    assert plan_of([2 * GIB], kv_offload=GIB, ram=ram + GIB).ledger[0].free >= 0
    assert plan_of([2 * GIB], ram=ram).ledger[0].free >= 0
    with pytest.raises(FitError):
        plan_of([2 * GIB], kv_offload=GIB, ram=ram)


def test_what_each_gib_saves_adds_up_to_what_the_card_saves() -> None:
    plan = plan_of([3 * GIB])
    cost = CostModel(large(), with_cards(24 * GIB))
    without = cost.decode(Placement.on_cpu(large()), plan.traffic).step_ms
    hops = plan.parts_ms.get("hops", 0.0)
    card, values = plan.ledger[1], plan.value_ms_by_gib["gpu0"]
    size = sum(card.of(name) for name in ("dense weights", "experts", "KV cache")) / GIB
    saved = sum(values[:-1]) + values[-1] * (size - len(values) + 1)
    assert saved == pytest.approx(without - plan.step_ms + hops, rel=0.01)
    assert list(plan.value_ms_by_gib["gpu0"]) == sorted(plan.value_ms_by_gib["gpu0"], reverse=True)


def test_the_why_has_the_numbers_of_the_card() -> None:
    told = plan_of([3 * GIB]).reasons
    assert told[0] == "It is easy to follow."
    assert any(text.startswith("gpu0 holds ") and "of 32 experts" in text and "of 3.00 GiB" in text for text in told)
    assert any(text.startswith("The first GiB of weights and KV cache on gpu0 saves ") for text in told)
    assert any(text.startswith("The next GiB on gpu0 would save about 2.50 ms") for text in told)
    assert any("layers need no CPU at all: 0" in text for text in told)
    assert any(text.startswith("The KV cache") and "as weights that memory would save" in text for text in told)


def test_bytes_that_the_cpu_reads_are_those_of_touched_experts() -> None:
    plan = plan_of(traffic=Traffic(streams=3, context=100))
    layer = large().layers[0]
    touched = 8 * (1 - (1 - 2 / 8) ** 3)
    expected = 4 * (layer.dense_bytes + 300 * layer.kv_bytes + touched * layer.expert_bytes) + large().head.nbytes
    assert plan.cpu_gb == pytest.approx(expected / 1e9)
    assert plan.bound_tok_s == pytest.approx(3e9 / expected)  # at 1 GB/s


def test_the_read_rate_is_that_of_the_profiles_threads() -> None:
    cpu = replace(with_cards().cpu, threads=4, read_gb_s={1: Estimate(10), 4: Estimate(30), 8: Estimate(40)})
    assert read_rate(cpu) == 30
    assert read_rate(replace(cpu, read_gb_s={8: Estimate(40)})) == 40


def test_layers_without_the_cpu_are_those_with_no_part_on_it() -> None:
    on, off = np.zeros(2, np.int8), np.array([0, CPU], np.int8)
    placement = Placement(dense=(0, CPU, 0, 0), experts=(on, on, off, np.zeros(0, np.int8)), embed=CPU, head=CPU)
    assert cpu_free_layers(placement) == (0, 3)


def test_what_does_not_fit_is_refused_with_other_forms_that_would() -> None:
    cost = CostModel(large(), with_cards())
    small = replace(large(), layers=large().layers[:1])
    with pytest.raises(FitError, match=r"large needs 3\.38 GiB.* any of these would fit: --format q4_0, or"):
        draft(cost, wish(ram=2 * GIB), alternatives=lambda: [Alternative("--format q4_0", small)], planner=layers_first)


def test_what_the_planner_cannot_place_is_refused_with_what_is_missing() -> None:
    cost = CostModel(large(), with_cards(24 * GIB))
    total = large().nbytes + 1024 * large().kv_bytes
    overheads = overheads_of(cost, wish([4 * GIB]), staged=False)
    card = overheads.of_vram(0) + total - 96 * MIB  # head and embedding are more than what is left
    with pytest.raises(FitError, match=r"does not fit: 0\.03 GiB more of RAM would be needed"):
        draft(cost, wish([card], ram=overheads.of_ram + 96 * MIB), planner=layers_first)


def test_a_card_too_small_for_its_own_context_is_refused() -> None:
    parts = r"\(0\.01 activations, 0\.38 accelerator context, 0\.25 headroom\)"
    with pytest.raises(FitError, match=rf"0\.25 GiB of gpu1 is less than .* {parts}; .* --vram gpu1=0GiB"):
        plan_of([4 * GIB, GIB // 4])


def test_the_least_that_is_named_for_a_card_will_do() -> None:
    with pytest.raises(FitError) as refused:
        plan_of([GIB // 4])
    least = re.search(r"there, (\d\.\d\d) GiB", str(refused.value))
    assert least is not None
    (_, card) = plan_of([int(float(least[1]) * GIB)]).ledger
    assert card.free < 2**30 // 100


def test_a_card_without_room_for_staging_does_without() -> None:
    card = plan_of([7 * GIB // 10]).ledger[1]  # an eighth of it is more than the overheads leave
    assert card.of("prefill staging") == 0 and card.free >= 0


def test_a_card_with_nothing_to_be_used_is_left_out() -> None:
    plan = plan_of([4 * GIB, 0])
    assert plan.ledger[2].total == 0


def test_the_time_of_the_disk_slows_the_prediction() -> None:
    def planner(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
        planned = layers_first(cost, traffic, budgets, kv_positions)
        return replace(planned, from_disk=(2, 0, 0, 0), disk_ms=50.0)

    cost = CostModel(large(), replace(with_cards(), ssd_read_gb_s=Estimate(0.5)))
    plain, slower = plan_of(), draft(cost, wish(disk=True), planner=planner)
    assert slower.step_ms == pytest.approx(plain.step_ms + 50)
    assert slower.predicted_decode_tok_s.value == pytest.approx(1000 / slower.step_ms)
    assert slower.cpu_gb == pytest.approx(plain.cpu_gb - 2 * 2 / 8 * 96 * MIB / 1e9)
    prompt_ms = [512e3 / plan.predicted_prefill_tok_s.value for plan in (plain, slower)]
    assert prompt_ms[1] - prompt_ms[0] == pytest.approx(2 * 96 * MIB / 0.5e6, rel=0.01)  # both are touched by then
    assert slower.layers[0].from_disk == 2
    assert any(text.startswith("RAM is short: 2 experts, 0.19 GiB, would be read") for text in slower.reasons)
    assert slower.ledger[0].of("experts") == plain.ledger[0].of("experts") - 2 * 96 * MIB


def test_slots_whose_experts_come_and_go_are_predicted_by_the_planner() -> None:
    def planner(cost: CostModel, traffic: Traffic, budgets: Budgets, kv_positions: int) -> Planned:
        planned = layers_first(cost, traffic, budgets, kv_positions)
        ms = planned.considered[0].step_ms / 2
        considered = (replace(planned.considered[0], step_ms=ms), *planned.considered[1:])
        return replace(planned, slots=(1, 0, 0, 0), considered=considered)

    plain = plan_of([3 * GIB])
    plan = draft(CostModel(large(), with_cards(24 * GIB)), wish([3 * GIB]), planner=planner)
    assert plan.step_ms == pytest.approx(plain.step_ms / 2)
    assert plan.predicted_decode_tok_s.high == pytest.approx(plain.predicted_decode_tok_s.high * 2)
    assert sum(plan.parts_ms.values()) == pytest.approx(plan.step_ms)
    assert plan.layers[0].slots == 1


def test_a_disk_that_may_not_be_used_is_not_counted_on() -> None:
    hardware = replace(with_cards(), ssd_read_gb_s=Estimate(3.0))
    assert model_of(large(), hardware, None, disk=False).hardware.ssd_read_gb_s.value == 0
    assert model_of(large(), hardware, None, disk=True).hardware.ssd_read_gb_s.value == 3
