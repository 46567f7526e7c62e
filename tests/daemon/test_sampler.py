"""The sampler against rules worked by hand and a naive reference; draws with fixed seeds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.daemon.errors import EngineError
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler, _invert, _nucleus, log_probabilities, ranked


def params(**fields) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": 10_000, **fields})


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def logits_of(seed: int, size: int, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=size) * scale).astype(np.float32)


def naive_distribution(logits: np.ndarray, p: SamplingParams) -> np.ndarray:
    """Full sort, float64, one rule after the other."""
    scores = logits.astype(np.float64) / p.temperature
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if p.top_k:
        order = order[: p.top_k]
    probs = np.zeros(len(scores))
    probs[order] = np.exp(scores[order] - scores.max())
    probs /= probs.sum()
    kept, mass = [], 0.0
    for i in order:
        kept.append(i)
        mass += probs[i]
        if p.top_p < 1.0 and mass >= p.top_p:
            break
    kept = [i for i in kept if probs[i] >= p.min_p * probs.max()]
    result = np.zeros(len(scores))
    result[kept] = probs[kept]
    return result / result.sum()


def frequencies(logits: np.ndarray, p: SamplingParams, draws: int) -> np.ndarray:
    sampler = Sampler(p, (0,))
    counts = Counter(sampler.sample(logits)[0] for _ in range(draws))
    return np.array([counts[i] / draws for i in range(len(logits))])


def test_greedy_takes_the_lowest_of_equal_ids():
    assert Sampler(params(), ()).sample(row(1, 3, 3, 2))[0] == 1


def test_the_logits_are_left_alone():
    logits = row(1, 3, 2)
    before = logits.copy()
    Sampler(params(temperature=0.7, repetition_penalty=2.0, logit_bias=((0, 5.0),)), (1,)).sample(logits)
    assert np.array_equal(logits, before)


def test_logit_bias_is_added():
    assert Sampler(params(logit_bias=((2, 1.5),)), ()).sample(row(0, 3, 2))[0] == 2


def test_repetition_penalty_divides_positive_and_multiplies_negative_scores_of_the_prompt():
    positive = Sampler(params(repetition_penalty=2.0), (1,))
    assert positive.sample(row(1.6, 3, -9))[0] == 0  # 3 / 2 < 1.6
    negative = Sampler(params(repetition_penalty=2.0), (1,))
    assert negative.sample(row(-1.9, -1, -9))[0] == 0  # -1 * 2 < -1.9


def test_repetition_penalty_counts_the_output_too():
    sampler = Sampler(params(repetition_penalty=2.0), ())
    logits = row(1.6, 3, -9)
    assert [sampler.sample(logits)[0] for _ in range(3)] == [1, 0, 1]


def test_repetition_penalty_counts_a_token_once_however_often_it_came():
    assert Sampler(params(repetition_penalty=2.0), (1, 1, 1)).sample(row(1.4, 3, -9))[0] == 1


def test_presence_penalty_subtracts_once_and_only_for_the_output():
    sampler = Sampler(params(presence_penalty=1.0), (1,))
    logits = row(1.5, 2, -9)
    assert [sampler.sample(logits)[0] for _ in range(4)] == [1, 0, 1, 1]


def test_frequency_penalty_subtracts_per_occurrence():
    sampler = Sampler(params(frequency_penalty=0.5), (0, 0, 0))
    logits = row(1.2, 2, -9)
    # after n ones and m zeros: 2 - n/2 against 1.2 - m/2
    assert [sampler.sample(logits)[0] for _ in range(4)] == [1, 1, 0, 1]


def test_a_negative_penalty_rewards_repetition():
    sampler = Sampler(params(presence_penalty=-2.0, logit_bias=()), ())
    assert [sampler.sample(row(0, 1))[0], sampler.sample(row(2.5, 1))[0]] == [1, 1]


def test_min_tokens_masks_stop_ids_until_they_are_due():
    sampler = Sampler(params(min_tokens=2), (), stop_ids={1})
    assert [sampler.sample(row(0, 3, 1))[0] for _ in range(3)] == [2, 2, 1]


def test_min_tokens_wins_over_logit_bias():
    assert Sampler(params(min_tokens=1, logit_bias=((1, 100.0),)), (), stop_ids={1}).sample(row(0, 3, 1))[0] == 2


def test_a_stop_id_outside_the_vocabulary_is_harmless():
    assert Sampler(params(min_tokens=1), (), stop_ids={1, 999}).sample(row(0, 3, 1))[0] == 2


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 5},
        {"top_k": 1000},
        {"top_p": 0.6},
        {"min_p": 0.2},
        {"top_k": 8, "top_p": 0.7},
        {"top_k": 8, "top_p": 0.9, "min_p": 0.1, "temperature": 1.5},
    ],
    ids=str,
)
def test_frequencies_follow_the_naive_reference(rules):
    p = params(**{"temperature": 1.0, "seed": 7, **rules})
    logits = logits_of(3, 24, 1.5)
    expected = naive_distribution(logits, p)
    drawn = frequencies(logits, p, 8000)
    assert set(np.flatnonzero(drawn)) <= set(np.flatnonzero(expected))
    assert np.abs(drawn - expected).max() < 0.02


@pytest.mark.parametrize("size", [511, 512, 513, 5000])
def test_a_draw_inverts_the_whole_cumulative_sum_across_its_spans(size):
    logits = logits_of(size, size)
    p = params(temperature=1.0, seed=11)
    sampler = Sampler(p, ())
    cumulative = np.cumsum(naive_distribution(logits, p))
    for index in range(200):
        uniform = int(np.random.Philox(key=11, counter=index).random_raw() >> 11) * 2.0**-53
        token = sampler.sample(logits)[0]
        below = cumulative[token - 1] if token else 0.0
        assert below - 1e-6 <= uniform <= cumulative[token] + 1e-6


def test_top_p_keeps_the_token_that_crosses_it():
    logits = np.log(row(0.5, 0.3, 0.2))
    drawn = frequencies(logits, params(temperature=1.0, top_p=0.6), 2000)
    assert drawn[2] == 0 and abs(drawn[1] - 0.375) < 0.05


def test_top_p_on_equal_scores_keeps_the_lower_ids():
    assert sorted(_nucleus(np.zeros(4000, np.float32), 0.5)) == list(range(2000))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99),
    size=st.integers(1, 3000),
    scale=st.sampled_from([0.01, 0.5, 3.0, 100.0]),
    top_p=st.floats(0.01, 0.99),
)
def test_the_nucleus_is_the_shortest_run_of_the_best_that_reaches_top_p(seed, size, scale, top_p):
    logits = logits_of(seed, size, scale)
    scaled = logits - logits.max()
    order = np.argsort(-scaled, kind="stable")
    reached = np.cumsum(np.exp(scaled[order]), dtype=np.float64)
    count = int(np.searchsorted(reached, top_p * reached[-1])) + 1
    found = _nucleus(scaled, top_p)
    assert abs(found.size - count) <= 1  # the sums differ in their last bits
    assert sorted(found) == sorted(order[: found.size])


def test_masked_scores_are_never_in_the_nucleus():
    scaled = np.zeros(1000, np.float32)
    scaled[500:] = -np.inf
    assert _nucleus(scaled, 0.999).max() < 500


@pytest.mark.parametrize("size", [3, 512, 700, 2000])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2.0**-53])
def test_a_draw_never_lands_on_a_weight_of_zero(size, uniform):
    weights = np.zeros(size, np.float32)
    weights[size // 2] = 0.3
    assert _invert(weights, uniform) == size // 2


def test_equal_scores_at_the_border_of_top_k_go_to_the_lower_ids():
    drawn = frequencies(np.zeros(10, np.float32), params(temperature=1.0, top_k=3), 200)
    assert set(np.flatnonzero(drawn)) == {0, 1, 2}


def test_min_p_of_one_keeps_the_best_and_its_equals():
    sampler = Sampler(params(temperature=1.0, min_p=1.0), ())
    assert {sampler.sample(row(1.0, 3.0, 2.9, 3.0))[0] for _ in range(50)} == {1, 3}


@pytest.mark.parametrize("temperature", [1e-30, 1e-40, 1e-300])
def test_a_tiny_temperature_is_greedy(temperature):
    """float32 rounds the last one to zero."""
    logits = logits_of(5, 1000, 10.0)
    token, _ = Sampler(params(temperature=temperature), ()).sample(logits)
    assert token == logits.argmax()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_leave_no_token_are_an_error(temperature):
    with pytest.raises(EngineError, match="leave no token"):
        Sampler(params(temperature=temperature, min_tokens=1), (), stop_ids=[0, 1, 2]).sample(row(1, 2, 3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_logits_are_an_engine_error(bad):
    with pytest.raises(EngineError, match="NaN or infinite"):
        Sampler(params(), ()).sample(row(1, bad, 2))


def test_no_logprobs_unless_asked_for():
    assert Sampler(params(), ()).sample(row(1, 2))[1] is None


def test_logprobs_are_the_log_softmax_of_the_raw_logits():
    """[25]"""
    logits = logits_of(9, 50)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    sampler = Sampler(params(logprobs=3, temperature=5.0, top_k=2, logit_bias=((0, 50.0),)), ())
    token, logprobs = sampler.sample(logits)
    assert token == 0  # by the bias
    assert logprobs.logprob == pytest.approx(expected[0], abs=1e-5)
    best = np.argsort(-expected)[:3]
    assert [i for i, _ in logprobs.top] == best.tolist()
    assert [value for _, value in logprobs.top] == pytest.approx(expected[best].tolist(), abs=1e-5)


def test_zero_logprobs_give_the_chosen_token_alone():
    _, logprobs = Sampler(params(logprobs=0), ()).sample(row(0, 0))
    assert logprobs.top == () and logprobs.logprob == pytest.approx(np.log(0.5))


def test_equal_logprobs_rank_by_the_lower_id():
    assert [i for i, _ in log_probabilities(row(0, 5, 5, 5, 1), 0, 3).top] == [1, 2, 3]


@settings(max_examples=60)
@given(seed=st.integers(0, 99), size=st.integers(1, 3000), count=st.integers(1, 100), levels=st.integers(1, 500))
def test_ranked_is_a_full_stable_sort_cut_short(seed, size, count, levels):
    values = np.random.default_rng(seed).integers(0, levels, size).astype(np.float32)
    assert ranked(values, count).tolist() == sorted(range(size), key=lambda i: (-values[i], i))[:count]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(-(2**63), 2**64 - 1))
def test_the_same_seed_gives_the_same_tokens_however_requests_interleave(order, seed):
    """[31]"""

    def stream(owner: int, step: int) -> np.ndarray:
        return logits_of(owner * 1000 + step, 40)

    p = params(temperature=1.0, seed=seed, top_p=0.95, presence_penalty=0.5)
    alone = Sampler(p, (1, 2))
    expected = [alone.sample(stream(0, step))[0] for step in range(order.count(0))]
    samplers = [Sampler(p, (1, 2)) for _ in range(3)]
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for owner in order:
        got[owner].append(samplers[owner].sample(stream(owner, len(got[owner])))[0])
    assert got[0] == expected


def test_requests_without_a_seed_differ():
    logits = np.zeros(1000, np.float32)
    first, second = (Sampler(params(temperature=1.0, seed=None), ()) for _ in range(2))
    assert [first.sample(logits) for _ in range(8)] != [second.sample(logits) for _ in range(8)]


def test_different_seeds_differ():
    logits = np.zeros(1000, np.float32)
    first, second = (Sampler(params(temperature=1.0, seed=s), ()) for s in (1, 2))
    assert [first.sample(logits) for _ in range(8)] != [second.sample(logits) for _ in range(8)]


def test_top_k_draws_the_same_with_a_vocabulary_of_150_thousand_as_by_a_full_sort():
    logits = logits_of(1, 151_936, 3.0)
    sampler = Sampler(params(temperature=1.0, top_k=40), ())
    best = set(np.argsort(-logits, kind="stable")[:40].tolist())
    assert {sampler.sample(logits)[0] for _ in range(50)} <= best
