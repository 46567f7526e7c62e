"""When experts change places, on cases worked out by hand and on traffic that drifts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from isotherm.placement.cost import CostModel
from isotherm.placement.placed import Placement, Traffic
from isotherm.placement.rebalance import MoveCosts, Rebalancer, Rules, Swap
from isotherm.placement.shape import CPU
from numpy.typing import NDArray
from support.cost_cases import accelerator, machine, model
from support.drawn_traffic import drawn, skewed

RULES = Rules(half_life=100.0, horizon=100.0, hysteresis=0.0, confidence=0.0, step_bytes=1000)


def placed(*layers: Sequence[int]) -> Placement:
    experts = tuple(np.array(layer, np.int8) for layer in layers)
    return Placement(dense=(0,) * len(layers), experts=experts, embed=CPU, head=0)


def costs(
    layers: int = 1, devices: int = 1, *, nbytes: int = 10, saving: float = 1.0, transfer: float = 5.0
) -> MoveCosts:
    shape = (layers, devices)
    return MoveCosts(
        nbytes=np.full(layers, nbytes), saving_ms=np.full(shape, saving), transfer_ms=np.full(shape, transfer)
    )


def test_costs_of_moving_follow_from_the_cost_model() -> None:
    cost = CostModel(model(layers=1), machine(accelerator(), accelerator(to_gb_s=5)))
    where, traffic = placed([0, 0, 0, 0, CPU, CPU, CPU, CPU]), Traffic(streams=2)
    found = MoveCosts.of(cost, where, traffic, hidden=0.25)
    assert found.nbytes.tolist() == [30 * 1024]
    assert found.transfer_ms.tolist() == [pytest.approx([0.75 * 30 * 1024 / 10e6, 0.75 * 30 * 1024 / 5e6])]
    without, with_four = (cost.layer_ms(0, 0, np.array(own, np.int8), traffic) for own in ([CPU] * 8, where.experts[0]))
    uses = 4 * 2 / 8 * 2  # of 4 experts of 8, of which a token has 2, by two streams
    assert found.saving_ms[0, 0] == pytest.approx((without - with_four) / uses)


def pairs(swaps: Sequence[Swap]) -> list[tuple[int, int, int]]:
    return [(swap.layer, swap.promoted, swap.demoted) for swap in swaps]


def rates(*layers: Sequence[float]) -> NDArray[np.float64]:
    return np.array(layers, np.float64)


def test_a_use_counts_half_after_the_half_life() -> None:
    rebalancer = Rebalancer(placed([0, CPU]), costs(), RULES)
    rebalancer.observe(np.array([[8, 0]]), 1)
    rebalancer.observe(np.array([[0, 2]]), 100)
    assert rebalancer.rates[0].tolist() == pytest.approx([4 * math.log(2) / 100, 2 * math.log(2) / 100])


def test_steady_traffic_comes_to_its_own_rates() -> None:
    rebalancer = Rebalancer(placed([0, CPU]), costs(), RULES)
    for token in range(2000):
        rebalancer.observe(np.array([[token % 4 == 0, 1]]), 1)
    assert rebalancer.rates[0].tolist() == pytest.approx([0.25, 1.0], rel=0.02)


def test_a_swap_says_what_it_saves_and_takes() -> None:
    found = Rebalancer(placed([0, CPU]), costs(), RULES, rates=rates([0.1, 0.4])).propose()
    assert pairs(found) == [(0, 1, 0)]
    assert (found[0].saving_ms, found[0].transfer_ms, found[0].nbytes) == (pytest.approx(30), 5, 10)
    assert found[0].reason == (
        "layer 0: a token chooses expert 1 0.400 times and expert 0 of accelerator 0 0.100 times; in 100 tokens that "
        "saves 30.00 ms for 5.00 ms of transfer"
    )


@pytest.mark.parametrize(("transfer", "swaps"), [(29.9, 1), (30.1, 0)])
def test_a_swap_must_pay_for_its_transfer_within_the_horizon(transfer: float, swaps: int) -> None:
    rebalancer = Rebalancer(placed([0, CPU]), costs(transfer=transfer), RULES, rates=rates([0.1, 0.4]))
    assert len(rebalancer.propose()) == swaps


@pytest.mark.parametrize(("hysteresis", "swaps"), [(0.99, 1), (1.01, 0)])
def test_a_newcomer_must_be_better_by_the_hysteresis(hysteresis: float, swaps: int) -> None:
    rules = replace(RULES, hysteresis=hysteresis)
    assert len(Rebalancer(placed([0, CPU]), costs(), rules, rates=rates([0.2, 0.4])).propose()) == swaps


@pytest.mark.parametrize(("confidence", "swaps"), [(1.9, 1), (2.1, 0)])
def test_a_difference_must_stand_out_of_the_noise(confidence: float, swaps: int) -> None:
    scores = rates([1.0, 9.0]) * math.log(2) / 100  # 8 apart, with a standard deviation of sqrt(10 / 2), and 3.58 of it
    rules = replace(RULES, confidence=confidence * 8 / math.sqrt(5) / 2)
    assert len(Rebalancer(placed([0, CPU]), costs(transfer=0), rules, rates=scores).propose()) == swaps


def test_the_best_swaps_for_their_bytes_come_first_within_the_bytes_of_a_step() -> None:
    where, traffic = placed([0, 0, CPU, CPU], [0, CPU, CPU, CPU]), rates([0.0, 0.1, 0.5, 0.4], [0.0, 0.45, 0.0, 0.3])
    everything = Rebalancer(where, costs(2), RULES, rates=traffic)
    assert pairs(everything.propose()) == [(0, 2, 0), (1, 1, 0), (0, 3, 1)]
    some = Rebalancer(where, costs(2), replace(RULES, step_bytes=29), rates=traffic)
    assert pairs(some.propose()) == [(0, 2, 0), (1, 1, 0)]


def test_the_time_of_a_step_is_kept_too() -> None:
    where, traffic = placed([0, 0, CPU, CPU]), rates([0.0, 0.1, 0.5, 0.4])
    assert len(Rebalancer(where, costs(), replace(RULES, step_ms=9.9), rates=traffic).propose()) == 1
    assert len(Rebalancer(where, costs(), replace(RULES, step_ms=10.0), rates=traffic).propose()) == 2


def test_what_is_pinned_stays() -> None:
    traffic, pinned = rates([0.0, 0.1, 0.5, 0.4]), np.array([[True, False, True, False]])
    rebalancer = Rebalancer(placed([0, 0, CPU, CPU]), costs(), RULES, rates=traffic, pinned=pinned)
    assert pairs(rebalancer.propose()) == [(0, 3, 1)]


def test_a_proposal_changes_nothing_and_applying_it_does() -> None:
    start = placed([0, CPU, CPU], [CPU, CPU, 0])
    rebalancer = Rebalancer(start, costs(2), RULES, rates=rates([0.0, 0.5, 0.0], [0.4, 0.0, 0.0]))
    assert rebalancer.propose() == rebalancer.propose()
    assert rebalancer.placement is start
    after = rebalancer.apply(rebalancer.propose())
    assert [own.tolist() for own in after.experts] == [[CPU, 0, CPU], [0, CPU, CPU]]
    assert [own.tolist() for own in start.experts] == [[0, CPU, CPU], [CPU, CPU, 0]]
    assert rebalancer.propose() == ()


def test_layers_are_numbered_as_in_the_model() -> None:
    found = Rebalancer(placed([], [0, CPU], []), costs(), RULES, rates=rates([0.0, 0.5])).propose()
    assert pairs(found) == [(1, 1, 0)]


def test_a_swap_that_is_no_longer_true_is_refused() -> None:
    rebalancer = Rebalancer(placed([0, CPU]), costs(), RULES, rates=rates([0.0, 0.5]))
    swaps = rebalancer.propose()
    rebalancer.apply(swaps)
    with pytest.raises(ValueError, match="experts 1 and 0 of layer 0 no longer lie"):
        rebalancer.apply(swaps)


def test_a_step_back_restores_and_rests_for_a_half_life() -> None:
    start = placed([0, CPU])
    rebalancer = Rebalancer(start, costs(), RULES, rates=rates([0.0, 0.9]))
    rebalancer.apply(rebalancer.propose())
    assert rebalancer.rollback() is start
    rebalancer.observe(np.array([[0, 99]]), 99)
    assert rebalancer.propose() == ()
    rebalancer.observe(np.array([[0, 1]]), 1)
    assert pairs(rebalancer.propose()) == [(0, 1, 0)]


def test_no_more_steps_back_than_are_kept() -> None:
    rebalancer = Rebalancer(placed([0, CPU]), costs(), replace(RULES, history=2))
    for turn in range(3):
        rebalancer.observe(np.array([[1000 * turn, 1000 - 1000 * turn]]), 1000)
        assert len(rebalancer.apply(rebalancer.propose()).experts) == 1
    rebalancer.rollback()
    rebalancer.rollback()
    with pytest.raises(ValueError, match="no earlier placement"):
        rebalancer.rollback()


def test_a_horizon_that_the_half_life_cannot_answer_for_is_refused() -> None:
    with pytest.raises(ValueError, match="horizon is 145 tokens, beyond 144"):
        replace(RULES, horizon=145.0)


def test_a_step_too_small_for_an_expert_is_refused() -> None:
    with pytest.raises(ValueError, match="step_bytes is 9, too few to move an expert; allow at least 10"):
        Rebalancer(placed([0, CPU]), costs(), replace(RULES, step_bytes=9))


def plain_candidates(where: NDArray[np.int8], scores: NDArray[np.float64], rules: Rules, cost: MoveCosts) -> list[Swap]:
    """By the definition, pair by pair; gain for each byte first."""
    found = []
    for layer in range(len(where)):
        on_cpu = sorted((e for e in range(where.shape[1]) if where[layer, e] == CPU), key=lambda e: -scores[layer, e])
        others = sorted((e for e in range(where.shape[1]) if where[layer, e] != CPU), key=lambda e: scores[layer, e])
        for up, down in zip(on_cpu, others, strict=False):
            high, low, device = scores[layer, up], scores[layer, down], where[layer, down]
            saved = (high - low) * math.log(2) / rules.half_life * rules.horizon * cost.saving_ms[layer, device]
            gain = saved - cost.transfer_ms[layer, device]
            noise = math.sqrt((high + low) / 2)
            if gain > 0 and high > low * (1 + rules.hysteresis) and high - low > rules.confidence * noise:
                found.append((-gain / cost.nbytes[layer], layer, up, down))
    return [(layer, up, down) for _, layer, up, down in sorted(found)]


def test_proposals_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(3)
    rules = replace(RULES, hysteresis=0.3, confidence=1.0, step_bytes=10**9)
    for _ in range(20):
        where = rng.integers(CPU, 2, (4, 10)).astype(np.int8)
        scores = rng.exponential(8.0, where.shape)
        cost = MoveCosts(
            nbytes=rng.integers(5, 20, 4), saving_ms=rng.random((4, 2)), transfer_ms=2 * rng.random((4, 2))
        )
        found = Rebalancer(placed(*where), cost, rules, rates=scores * math.log(2) / 100).propose()
        assert pairs(found) == plain_candidates(where, scores, rules, cost)


def held(placement: Placement) -> NDArray[np.bool_]:
    return np.stack(placement.experts) != CPU


def hottest_held(weights: NDArray[np.float64], slots: int) -> Placement:
    rank = np.argsort(np.argsort(-weights, axis=1), axis=1)
    return placed(*np.where(rank < slots, 0, CPU))


def serve(rebalancer: Rebalancer, choices: NDArray[np.uint16]) -> list[tuple[Swap, ...]]:
    """Token by token, a decision every 16 of them."""
    made = []
    layers, experts = held(rebalancer.placement).shape
    for start in range(0, len(choices), 16):
        counts = np.zeros((layers, experts), np.int64)
        for layer in range(layers):
            counts[layer] = np.bincount(choices[start : start + 16, layer].reshape(-1), minlength=experts)
        rebalancer.observe(counts, len(choices[start : start + 16]))
        made.append(rebalancer.propose())
        rebalancer.apply(made[-1])
    return made


DRIFT = Rules(half_life=256.0, horizon=256.0, step_bytes=40)


def share_held(placement: Placement, choices: NDArray[np.uint16]) -> float:
    where = held(placement)
    return float(np.mean([where[layer, choices[:, layer]].mean() for layer in range(len(where))]))


def test_a_shift_of_the_hot_set_is_followed() -> None:
    before, after = skewed(3, 24, power=1.5, seed=1), skewed(3, 24, power=1.5, seed=2)
    rebalancer = Rebalancer(hottest_held(before, 8), costs(3), DRIFT)
    serve(rebalancer, drawn(before, 512, 4, seed=1))
    choices = drawn(after, 2048, 4, seed=2)
    stale = share_held(rebalancer.placement, choices)
    serve(rebalancer, choices[:1024])  # four half-lives
    best = share_held(hottest_held(after, 8), choices[1024:])
    assert stale < 0.6 < 0.95 * best <= share_held(rebalancer.placement, choices[1024:])


def test_noise_moves_nothing() -> None:
    weights = skewed(3, 24, power=0.3, seed=1)  # near each other, so that by chance many come out in another order
    rebalancer = Rebalancer(hottest_held(weights, 8), costs(3, transfer=0.0), DRIFT)
    assert sum(map(len, serve(rebalancer, drawn(weights, 4096, 4, seed=4)))) == 0
    easy = replace(DRIFT, confidence=0.0, hysteresis=0.0)
    restless = Rebalancer(hottest_held(weights, 8), costs(3, transfer=0.0), easy)
    assert sum(map(len, serve(restless, drawn(weights, 4096, 4, seed=4)))) > 100


def to_and_fro(phase: int, tokens: int) -> NDArray[np.uint16]:
    """Experts 0 and 1 for so many tokens, then 2 and 3, and so on."""
    second = np.arange(tokens) // phase % 2 == 1
    return np.where(second[:, None, None], [[2, 3]], [[0, 1]]).astype(np.uint16)


@pytest.mark.parametrize("phase", [32, 64, 96])
def test_traffic_that_goes_to_and_fro_before_a_swap_pays_is_not_followed(phase: int) -> None:
    slow = costs(transfer=100.0)  # ms, and 1 ms saved a token
    rebalancer = Rebalancer(placed([CPU, CPU, 0, 0]), slow, replace(DRIFT, confidence=0.0, hysteresis=0.0))
    assert sum(map(len, serve(rebalancer, to_and_fro(phase, 4096)))) == 0


def test_traffic_that_goes_to_and_fro_slowly_is_followed() -> None:
    rebalancer = Rebalancer(placed([CPU, CPU, 0, 0]), costs(transfer=100.0), DRIFT)
    assert sum(map(len, serve(rebalancer, to_and_fro(1024, 4096)))) == 2 * 4


def test_slots_of_each_device_stay_and_no_step_exceeds_its_budget() -> None:
    rng = np.random.default_rng(8)
    start = placed(*rng.integers(CPU, 2, (3, 24)))
    rebalancer = Rebalancer(start, costs(3, 2), replace(DRIFT, step_bytes=29))
    made = []
    for seed in range(4):
        made += serve(rebalancer, drawn(skewed(3, 24, power=1.5, seed=seed), 512, 4, seed=seed))
    assert max(map(len, made)) == 2
    for own, first in zip(rebalancer.placement.experts, start.experts, strict=True):
        assert np.bincount(own + 1, minlength=3).tolist() == np.bincount(first + 1, minlength=3).tolist()


def test_equal_traffic_gives_equal_swaps() -> None:
    start, choices = hottest_held(skewed(3, 24, seed=1), 8), drawn(skewed(3, 24, power=1.5, seed=2), 1024, 4)
    one, two = (serve(Rebalancer(start, costs(3), DRIFT), choices) for _ in range(2))
    assert one == two
    assert sum(map(len, one)) > 5
