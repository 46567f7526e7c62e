from dataclasses import replace
from math import comb

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.device_cost import UnknownKindError
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.shape import CPU, ModelShape
from support.cost_cases import accelerator, free_accelerator, machine, model, product, trace_of

ONE = Traffic(streams=1, context=9)


def placed(shape: ModelShape, dense: int, experts: list[int], head: int = CPU) -> Placement:
    layers = len(shape.layers)
    return Placement(dense=(dense,) * layers, experts=(np.array(experts, np.int8),) * layers, embed=CPU, head=head)


def first(n: int, of: int = 8) -> np.ndarray:
    """The n hottest of equal experts on the first card."""
    return np.where(np.arange(of) < n, 0, CPU).astype(np.int8)


def test_a_step_on_the_cpu_takes_what_was_worked_out_by_hand() -> None:
    shape = model()
    found = CostModel(shape, machine()).decode(Placement.on_cpu(shape), ONE)
    assert found.parts_ms == pytest.approx(
        {
            "attention": 0.005,  # 10 positions of 1000 bytes, 2 GB/s
            "dense": 0.2248,  # 200 KiB: read in 0.2048, computed in 0.04, of which half hides
            "norms and sums": 0.0001,
            "calls": 0.022,  # six ops and the experts' call
            "experts on the CPU": 0.06944,  # two, each 0.001, read in 0.03072, computed in 0.006
            "head": 1.124,
            "step": 0.05,
        },
        rel=1e-12,
    )
    assert found.step_ms == pytest.approx(1.49534, rel=1e-12)
    assert found.value == pytest.approx(1e3 / 1.49534, rel=1e-12)


def test_a_step_of_four_streams_takes_what_was_worked_out_by_hand() -> None:
    shape = model(window=4)
    found = CostModel(shape, machine()).decode(Placement.on_cpu(shape), Traffic(streams=4, context=9))
    chances = [comb(4, n) * 0.25**n * 0.75 ** (4 - n) for n in range(5)]
    kib_us = [0, 0.2, 0.3, 0.3 + 2 * 0.2, 0.4]  # three tokens are two and one, of which only the first two hide
    each = sum(chances[n] * (1 + 30.72 + 0.5 * 30 * kib_us[n]) for n in range(1, 5))
    expected = {
        "attention": 4 * 4 * 1000 / 2e3,  # each sees four positions
        "dense": 204.8 + 0.5 * 80,
        "norms and sums": 0.4,
        "calls": 22,
        "experts on the CPU": 8 * each,
        "head": 1024 + 0.5 * 400,
        "step": 50,
    }
    assert found.parts_ms == pytest.approx({name: us / 1e3 for name, us in expected.items()}, rel=1e-12)
    assert found.value == pytest.approx(4e6 / sum(expected.values()), rel=1e-12)


def test_a_step_on_a_card_takes_what_was_worked_out_by_hand() -> None:
    shape = model()
    found = CostModel(shape, machine(accelerator())).decode(placed(shape, 0, [0] * 8, head=0), ONE)
    expected = {
        "hops": 5.4 + 1 + 5.04,  # hidden state there, where all that follows is one launch; logits back
        "attention": 0.1,
        "dense": 2.048,
        "norms and sums": 4 * 6.6 / 100,  # 6,600 values are read or written
        "experts on gpu0": 2 * (3 * 0.2 + 0.08),  # 200,000 operations take longer than 10 KiB; then it is added up
        "head": 10.24,
        "step": 50,
    }
    assert found.parts_ms == pytest.approx({name: us / 1e3 for name, us in expected.items()}, rel=1e-9)


def test_experts_that_stay_on_the_cpu_cost_a_hop_there_and_back() -> None:
    shape = model()
    cost = CostModel(shape, machine(accelerator()))
    found = cost.decode(placed(shape, 0, [CPU] * 8, head=0), ONE).parts_ms
    launches = 3  # what is before the experts, the place of their outputs, and what is after them
    assert found["hops"] == pytest.approx((5.4 + 5.04 + 5.4 + 5 + launches) / 1e3)
    each_us = 0.4 + 2 * 0.08  # an output on its way back, put with the others, and added up
    assert found["experts on the CPU"] == pytest.approx(0.06944 + 2 * each_us / 1e3)


def test_each_expert_of_a_token_sends_an_output_back() -> None:
    times = [
        CostModel(model(top_k=top_k), machine(accelerator(from_gb_s=0.1))).layer_ms(0, CPU, np.zeros(8, np.int8), ONE)
        for top_k in (2, 6)
    ]
    assert times[1] - times[0] == pytest.approx((4 * (3 * 0.2 + 40)) / 1e3)


def test_a_token_is_sent_as_experts_read_it() -> None:
    plain, record = (model(sent_bytes=nbytes) for nbytes in (None, 1000))
    times = [
        CostModel(shape, machine(accelerator())).layer_ms(0, CPU, np.zeros(8, np.int8), ONE)
        for shape in (plain, record)
    ]
    assert times[0] - times[1] == pytest.approx(3000 / 10e6)


def test_layers_on_different_devices_hand_over() -> None:
    shape = model(3)
    experts = Placement.on_cpu(shape).experts
    changing = Placement(dense=(0, CPU, 0), experts=experts, embed=CPU, head=CPU)
    cost = CostModel(shape, machine(accelerator()))
    handed, asked = 4 * 5.4 + 2, 2 * (5.4 + 5 + 2)  # between layers; for the experts of two, which stayed on the CPU
    assert cost.decode(changing, ONE).parts_ms["hops"] == pytest.approx((handed + asked) / 1e3)


def test_whole_layers_on_a_card_are_one_launch_and_others_three_each() -> None:
    def launches(layers: int, experts: list[int]) -> float:
        shape = model(layers)
        slow, quick = (
            CostModel(shape, machine(accelerator(launch_us=us))).decode(placed(shape, 0, experts, head=0), ONE).step_ms
            for us in (1e6, 0)
        )
        return (slow - quick) / 1e3

    assert [launches(layers, [0] * 8) for layers in (1, 5)] == pytest.approx([1, 1])
    apart = [launches(layers, [0] * 4 + [CPU] * 4) for layers in (1, 5)]
    assert apart == pytest.approx([1 + 2, 1 + 5 * 2], rel=1e-3)  # of its experts, and at once of what follows


def test_a_window_bounds_what_attention_reads() -> None:
    shape, wide = model(window=100), model()
    costs = [CostModel(s, machine()).decode(Placement.on_cpu(s), Traffic(context=1000)) for s in (shape, wide)]
    assert costs[0].parts_ms["attention"] * 1001 == pytest.approx(costs[1].parts_ms["attention"] * 100)


def test_more_streams_make_a_step_longer_and_a_token_cheaper() -> None:
    shape = model(num_experts=16, top_k=4)
    cost = CostModel(shape, machine())
    steps = [cost.decode(Placement.on_cpu(shape), Traffic(streams=n)) for n in (1, 2, 4, 8, 16, 32)]
    assert np.all(np.diff([step.step_ms for step in steps]) > 0)
    assert np.all(np.diff([step.value for step in steps]) > 0)


@pytest.mark.parametrize("streams", [1, 4])
def test_more_bandwidth_is_never_slower(streams: int) -> None:
    shape, traffic = model(2), Traffic(streams=streams)
    times = [CostModel(shape, machine(read_gb_s=r)).decode(Placement.on_cpu(shape), traffic).step_ms for r in (1, 2, 9)]
    assert np.all(np.diff(times) < 0)


@pytest.mark.parametrize("streams", [1, 3, 16])
@pytest.mark.parametrize("dense", [CPU, 0])
def test_more_experts_on_a_free_card_are_never_slower(streams: int, dense: int) -> None:
    curve = CostModel(model(), machine(free_accelerator())).expert_curve(0, dense, 0, Traffic(streams=streams))
    assert np.all(np.diff(curve) < 1e-12)


def test_finishing_a_layer_saves_the_call() -> None:
    curves = [
        CostModel(model(), machine(free_accelerator(), call_us=us)).expert_curve(0, CPU, 0, ONE) for us in (0, 1000)
    ]
    calls = curves[1] - curves[0]
    assert calls == pytest.approx([1 - comb(n, 2) / 28 for n in range(9)], abs=1e-5)
    saved = -np.diff(curves[1])
    assert np.all(np.diff(saved) > -1e-5)  # each expert saves more than the one before
    assert saved[-1] > 4 * saved[0]


def test_a_curve_is_layer_ms_of_each_set_of_hottest_experts() -> None:
    cost, traffic = CostModel(model(), machine(accelerator())), Traffic(streams=3)
    curve = cost.expert_curve(0, 0, 0, traffic)
    assert curve == pytest.approx([cost.layer_ms(0, 0, first(n), traffic) for n in range(9)], rel=1e-9)


def test_a_curve_follows_the_order_of_share() -> None:
    chosen = [[[7, i % 7]] for i in range(400)]
    cost = CostModel(model(), machine(free_accelerator()), trace_of(chosen, 8))
    assert int(np.argmax(cost.share(0))) == 7
    hot = np.where(np.arange(8) == 7, 0, CPU).astype(np.int8)
    assert cost.expert_curve(0, CPU, 0, ONE)[1] == pytest.approx(cost.layer_ms(0, CPU, hot, ONE), rel=1e-9)


def test_the_sum_of_layers_is_the_step() -> None:
    shape = model(3)
    cost, placement = CostModel(shape, machine(accelerator())), placed(model(3), CPU, [CPU] * 5 + [0] * 3)
    found = cost.decode(placement, ONE)
    layers = sum(cost.layer_ms(n, CPU, placement.experts[n], ONE) for n in range(3))
    assert found.step_ms == pytest.approx(layers + found.parts_ms["head"] + found.parts_ms["step"], rel=1e-9)


def test_a_trace_with_experts_that_go_together_finishes_tokens_on_the_card() -> None:
    """Replay sees that half the tokens need nothing from the CPU; shares alone do not."""
    chosen = [[[0, 1]] if i % 2 else [[2, 3]] for i in range(400)]
    cost = CostModel(model(num_experts=4), machine(free_accelerator()), trace_of(chosen, 4))
    half = cost.layer_ms(0, CPU, first(2, 4), ONE) - cost.layer_ms(0, CPU, first(4, 4), ONE)
    assert half == pytest.approx(0.5 * (0.01 + 0.06944), rel=0.01)


@pytest.mark.parametrize("on_card", [3, 8, 13])
def test_a_layer_takes_what_steps_of_the_trace_take_one_by_one(on_card: int) -> None:
    """The CPU and a card that is as slow share 16 experts, of which three streams choose four each."""
    random = np.random.default_rng(2)
    liking = 0.8 * np.log(np.arange(1, 17)) - random.gumbel(size=(1000, 16))
    chosen = liking.argsort(axis=1)[:, :4]
    trace = trace_of(chosen[:, None].tolist(), 16, list(range(0, 1000, 10)))
    card = accelerator(read_gb_s=0.9, tflops=1e9, launch_us=0, hop_us=0, to_gb_s=1e9, from_gb_s=1e9)
    cost = CostModel(model(num_experts=16, top_k=4), machine(card, call_us=30), trace)
    order = np.argsort(-cost.share(0), kind="stable")
    there = np.isin(np.arange(16), order[:on_card])
    kib_us, times = np.array([0, 0.2, 0.3, 0.5]), []
    for _ in range(1000):
        counts = np.bincount(chosen[random.integers(0, 1000, 3)].ravel(), minlength=16)
        here, touched = counts[~there & (counts > 0)], np.count_nonzero(there & (counts > 0))
        of_cpu = np.sum(1 + 30.72 + 0.5 * 30 * kib_us[here]) + 30 * (len(here) > 0)
        times.append(max(of_cpu, touched * 30.72 / 0.9) / 1e3)
    resident = np.where(there, 0, CPU).astype(np.int8)
    found = cost.decode(placed(cost.shape, CPU, resident.tolist()), Traffic(streams=3)).parts_ms
    experts = cost.layer_ms(0, CPU, resident, Traffic(streams=3)) - sum(
        found[part] for part in ("attention", "dense", "norms and sums")
    )
    assert experts - 6 * 0.002 == pytest.approx(np.mean(times), rel=0.03)


def test_two_cards_and_the_cpu_work_at_once() -> None:
    cards = (accelerator(read_gb_s=1, tflops=1e9), accelerator(read_gb_s=1, tflops=1e9))
    cost = CostModel(model(num_experts=12, top_k=6), machine(*cards))
    thirds = np.repeat(np.array([CPU, 0, 1], np.int8), 4)
    alone = cost.layer_ms(0, CPU, np.full(12, CPU, np.int8), ONE)
    dense = cost.layer_ms(0, CPU, np.full(12, 0, np.int8), ONE) - (4 + 5.4 + 5 + 6 * (30.72 + 0.4)) / 1e3
    assert cost.layer_ms(0, CPU, thirds, ONE) - dense > (alone - dense) / 3
    assert cost.layer_ms(0, CPU, thirds, ONE) - dense < (alone - dense) / 2


def test_a_dense_layer_has_no_curve_to_speak_of() -> None:
    dense = (product("gate", 100), product("up", 100), product("down", 100))
    shape = model(num_experts=0, top_k=0, dense=dense)
    cost = CostModel(shape, machine(accelerator()))
    assert cost.expert_curve(0, CPU, 0, ONE) == pytest.approx([cost.layer_ms(0, CPU, np.zeros(0, np.int8), ONE)])
    assert cost.touch(0, 2).shape == cost.share(0).shape == (0,)
    assert cost.decode(Placement.on_cpu(shape), ONE).parts_ms["calls"] == pytest.approx((6 + 3) * 0.002)


def test_a_kind_that_was_not_measured_is_named() -> None:
    shape = replace(model(), head=product("head", 10, kind="q9"))
    with pytest.raises(UnknownKindError, match=r"no products of kind 'q9', only q4; run `isotherm calibrate`"):
        CostModel(shape, machine()).decode(Placement.on_cpu(shape), ONE)


def test_a_trace_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="1 layers with 2 of 4 experts, which small has not"):
        CostModel(model(), machine(), trace_of([[[0, 1]]], 4))


def test_a_placement_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="the placement is not one of small"):
        CostModel(model(), machine()).decode(Placement.on_cpu(model(2)), ONE)


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="device 1 is not in the hardware profile: it has 1 cards"):
        CostModel(model(), machine(accelerator())).expert_curve(0, CPU, 1, ONE)


@pytest.mark.parametrize("wrong", [{"streams": 0}, {"chunk": 0}, {"prompt": -1}, {"context": -1}])
def test_traffic_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Traffic(**wrong)
