from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from isotherm.placement.routing import Routing
from isotherm.placement.touch import Demand, Steps, hottest, independent, neutral_share, share_of, skewed_share
from support.cost_cases import model, trace_of

UNEVEN = np.array([0.9, 0.6, 0.3, 0.2])  # two experts a token


def design(share: np.ndarray, top_k: int) -> dict[tuple[int, ...], float]:
    """Every choice of a token and its probability: independent choices of which exactly top_k came true."""
    odds = share / (1 - share)
    weights = {chosen: float(np.prod(odds[list(chosen)])) for chosen in combinations(range(len(share)), top_k)}
    return {chosen: weight / sum(weights.values()) for chosen, weight in weights.items()}


def test_touch_is_what_enumeration_of_independent_tokens_gives() -> None:
    share, tokens = np.array([0.5, 0.3, 0.2]), 3  # one expert a token, so these are the probabilities
    touched, chances = np.zeros(3), np.zeros((3, tokens + 1))
    for chosen in product(range(3), repeat=tokens):
        probability, counts = np.prod(share[list(chosen)]), np.bincount(chosen, minlength=3)
        touched += probability * (counts > 0)
        chances[np.arange(3), counts] += probability
    demand = independent(share, tokens)
    assert demand.touch == pytest.approx(touched, rel=1e-12)
    assert demand.chances == pytest.approx(chances, rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 5])
def test_touch_is_one_minus_the_power_for_each_expert(tokens: int) -> None:
    assert independent(UNEVEN, tokens).touch == pytest.approx(1 - (1 - UNEVEN) ** tokens, rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_call_is_skipped_as_often_as_enumeration_says(tokens: int) -> None:
    demand = independent(UNEVEN, tokens)
    for n in range(5):
        inside = sum(p for chosen, p in design(UNEVEN, 2).items() if set(chosen) <= set(range(n)))
        assert demand.beyond[n] == pytest.approx(1 - inside**tokens, abs=1e-12)


def test_the_call_is_skipped_by_any_set_as_enumeration_says() -> None:
    for size in range(5):
        for here in combinations(range(4), size):
            inside = sum(p for chosen, p in design(UNEVEN, 2).items() if not set(chosen) & set(here))
            mask = np.isin(np.arange(4), here)
            assert independent(UNEVEN, 2).touches(mask) == pytest.approx(1 - inside**2, abs=1e-12)


def test_with_equal_experts_a_token_stays_among_n_of_them_as_urns_say() -> None:
    demand = independent(neutral_share(16, 4), 2)
    expected = [1 - (comb(n, 4) / comb(16, 4)) ** 2 for n in range(17)]
    assert demand.beyond == pytest.approx(expected, abs=1e-12)


def test_an_expert_that_no_token_or_every_token_chooses_is_no_special_case() -> None:
    demand = independent(np.array([1.0, 1.0, 0.0]), 4)
    assert demand.touch == pytest.approx([1, 1, 0], abs=1e-12)
    assert demand.beyond == pytest.approx([1, 1, 0, 0], abs=1e-6)


def test_many_tokens_lose_no_probability() -> None:
    chances = independent(neutral_share(128, 8), 4096).chances
    assert chances.shape[1] < 1000
    assert chances.sum(axis=1) == pytest.approx(1, abs=1e-9)
    assert chances @ np.arange(chances.shape[1]) == pytest.approx(4096 * 8 / 128, rel=1e-9)


def test_equal_experts_keep_their_order() -> None:
    assert hottest(np.array([0.5, 1.0, 0.5, 1.0])).tolist() == [1, 3, 0, 2]


def test_skew_is_usual() -> None:
    share = np.sort(skewed_share(64, 8))[::-1]
    assert share.sum() == pytest.approx(8)
    assert 0.7 < share[:32].sum() / 8 < 0.8


def test_a_share_is_counted_and_leans_to_equal_ones_where_little_was() -> None:
    trace = trace_of([[[0, 1]]] * 16, 4)
    assert share_of(trace, 0, ("decode",)) == pytest.approx([0.75, 0.75, 0.25, 0.25])  # half of it is prior
    assert share_of(trace, 0, ("prefill", "decode")).sum() == pytest.approx(2)


def replayed(tokens: int, sequences: list[list[int]], length: int = 50) -> Demand:
    """Sequences of tokens that always choose the same."""
    chosen = [[experts] for experts in sequences for _ in range(length)]
    trace = trace_of(chosen, 4, [length * i for i in range(len(sequences))])
    return Steps(trace).replay(0, share_of(trace, 0, ("decode",)), tokens)


def test_a_replayed_step_takes_tokens_of_different_sequences() -> None:
    assert replayed(2, [[0, 1], [2, 3]]).touch.tolist() == [1, 1, 1, 1]


def test_a_replayed_token_keeps_its_experts_together() -> None:
    demand = replayed(1, [[0, 1], [2, 3]])
    assert demand.beyond.tolist() == [1, 1, 0.5, 0.5, 0]  # independent tokens would stay with the first two less often
    assert demand.touches(np.array([False, False, True, True])) == 0.5


def test_replay_counts_as_often_as_simulation() -> None:
    demand = replayed(2, [[0, 1], [0, 2], [0, 3]])
    pairs = list(combinations([1, 2, 3], 2))
    expected = [sum(e in pair for pair in pairs) / len(pairs) for e in (1, 2, 3)]
    assert demand.chances[0].tolist() == [0, 0, 1]
    assert demand.touch[1:] == pytest.approx(expected, abs=0.05)


def test_replay_is_the_same_each_time() -> None:
    first, second = (replayed(2, [[0, 1], [1, 2], [2, 3]]) for _ in range(2))
    assert (first.chances == second.chances).all()


@pytest.mark.parametrize(("sequences", "length", "tokens"), [(1, 200, 2), (2, 10, 2)])
def test_a_small_sample_is_not_replayed(sequences: int, length: int, tokens: int) -> None:
    trace = trace_of([[[0, 1]]] * (sequences * length), 4, [length * i for i in range(sequences)])
    touch = Routing(model(num_experts=4), trace).decode(0, tokens).touch
    assert touch == pytest.approx(1 - (1 - share_of(trace, 0, ("decode",))) ** tokens)
