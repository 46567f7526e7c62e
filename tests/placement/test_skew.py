"""Skew against brute force, on traffic whose skew is known, and on shuffled traffic."""

import numpy as np
import pytest
from isotherm.placement.sample import count_sample
from isotherm.placement.shuffle import shuffled_experts, shuffled_preferences, shuffled_time
from isotherm.placement.skew import (
    FRACTIONS,
    MAX_PARTS,
    Skew,
    covered,
    held_out_hits,
    measure_skew,
    tokens_needed,
)
from isotherm.placement.trace import RoutingTrace
from numpy.typing import NDArray
from support.routing import random_sample, trace_of_sample

LAYERS, EXPERTS, TOP_K = 4, 20, 2


def traffic(sequences: int, length: int, shared: float, own: float, seed: int = 0) -> RoutingTrace:
    """shared, own: how strongly all sequences together and each by itself prefer some experts, as standard
    deviations."""
    rng = np.random.default_rng(seed)
    liking = shared * rng.normal(size=(1, LAYERS, EXPERTS))
    liking = liking + own * np.repeat(rng.normal(size=(sequences, LAYERS, EXPERTS)), length, axis=0)
    sample = random_sample(rng, sequences * length, LAYERS, EXPERTS, TOP_K, liking)
    return trace_of_sample(sample, EXPERTS, range(0, sequences * length, length))


def measured(trace: RoutingTrace) -> Skew:
    skew = measure_skew(trace)
    assert skew is not None
    return skew


def dealt(shares: list[int], sequences: int) -> RoutingTrace:
    """One layer, one expert for each token: in each sequence expert i has shares[i] tokens, in random order."""
    rng = np.random.default_rng(0)
    tokens = np.concatenate([rng.permutation(np.repeat(np.arange(len(shares)), shares)) for _ in range(sequences)])
    sample = tokens.astype(np.uint16).reshape(-1, 1, 1)
    return trace_of_sample(sample, len(shares), range(0, len(sample), sum(shares)))


def test_samples_are_counted() -> None:
    sample = traffic(1, 30, 1.0, 0.0).sample
    counts = count_sample(sample, EXPERTS)
    for layer in range(LAYERS):
        assert counts[layer].tolist() == [(sample[:, layer] == expert).sum() for expert in range(EXPERTS)]


def test_coverage_is_the_share_of_the_hottest() -> None:
    counts = np.array([[8.0, 1, 1, 0], [4, 4, 1, 1]])
    assert covered(counts, 0.25) == (8 + 4) / 20
    assert covered(counts, 0.01) == 8 / 20
    assert covered(counts, 1.0) == 1
    assert covered(np.zeros((2, 4)), 0.5) == 0


def test_held_out_hits_are_those_of_a_set_learned_elsewhere() -> None:
    rng = np.random.default_rng(1)
    parts = rng.permuted(np.arange(40.0).reshape(4, 10), axis=1)  # ties go by number
    parts[:, 3:6] = parts[:, :1]
    hits = held_out_hits(parts, range(1, 11))
    for part in range(4):
        rest = [sum(parts[other, expert] for other in range(4) if other != part) for expert in range(10)]
        hottest = sorted(range(10), key=lambda expert: (-rest[expert], expert))
        for n in range(10):
            assert hits[part, n] == sum(parts[part, expert] for expert in hottest[: n + 1])


def test_known_skew_is_found_in_held_out_traffic() -> None:
    at = measured(dealt([40, 21, *[5] * 7, 4], sequences=6)).at(0.2)
    assert (at.experts, at.per_layer) == (2, 2)
    assert at.held_out == at.same == pytest.approx(0.61)
    assert at.by_layer.tolist() == pytest.approx([0.61])
    assert at.uniform == pytest.approx(0.2)
    assert at.spread == pytest.approx(0, abs=1e-12)
    assert at.luck < 0.3


def test_the_spread_is_the_standard_error_of_the_parts() -> None:
    rng = np.random.default_rng(3)
    parts = [np.where(rng.random(100) < share, 0, 1 + rng.integers(9, size=100)) for share in (0.9, 0.6, 0.7, 0.8)]
    sample = np.concatenate(parts).astype(np.uint16).reshape(-1, 1, 1)
    at = measured(trace_of_sample(sample, 10, range(0, 400, 100))).at(0.1)
    shares = [float((part == 0).mean()) for part in parts]
    assert at.held_out == pytest.approx(np.mean(shares))
    assert at.spread == pytest.approx(np.std(shares, ddof=1) / 2)


def test_the_hottest_of_all_layers_may_lie_in_one() -> None:
    rng = np.random.default_rng(2)
    liking = np.zeros((1, 2, 10))
    liking[0, 0, :4] = 9.0
    sample = random_sample(rng, 400, 2, 10, 2, liking)
    at = measured(trace_of_sample(sample, 10, range(0, 400, 50))).at(0.2)
    assert at.experts == 4
    assert at.held_out == pytest.approx(0.5, abs=0.02)
    assert at.by_layer[0] == pytest.approx(0.5, abs=0.06)
    assert at.by_layer[1] == pytest.approx(0.2, abs=0.06)


def test_without_liking_held_out_is_chance_and_the_rest_is_luck() -> None:
    for at in measured(traffic(8, 60, 0.0, 0.0)).coverage:
        assert at.held_out == pytest.approx(at.uniform, abs=0.02)
        assert at.same == pytest.approx(at.luck, abs=0.02)
        assert at.same > at.held_out


def test_likings_of_single_sequences_do_not_carry_over() -> None:
    at = measured(traffic(16, 60, 0.0, 1.5)).at(0.2)
    assert at.same > at.luck + 0.05
    assert at.held_out == pytest.approx(at.uniform, abs=4 * at.shuffled_spread)
    assert at.shuffled == pytest.approx(at.uniform, abs=0.02)


def test_common_liking_carries_over_unless_it_is_shuffled() -> None:
    at = measured(traffic(16, 60, 1.5, 0.0)).at(0.2)
    assert at.held_out > 0.5
    assert at.held_out == pytest.approx(at.same, abs=0.02)
    assert at.shuffled == pytest.approx(at.uniform, abs=0.03)


def test_whole_sequences_are_held_out() -> None:
    skew = measured(traffic(5, 60, 1.0, 0.0))
    assert (skew.tokens, skew.sequences, skew.parts, skew.parts_are) == (300, 5, 5, "sequences")


def test_many_sequences_share_parts() -> None:
    skew = measured(traffic(100, 3, 1.0, 0.0))
    assert (skew.sequences, skew.parts_are) == (100, "sequences")
    assert 2 * MAX_PARTS // 3 < skew.parts <= MAX_PARTS


@pytest.mark.parametrize("starts", [(0,), (0, 40), (0, 161)])
def test_a_sequence_that_is_most_of_the_sample_is_cut(starts: tuple[int, ...]) -> None:
    trace = traffic(1, 300, 1.0, 0.0)
    skew = measured(trace_of_sample(trace.sample, EXPERTS, starts))
    assert (skew.parts, skew.parts_are) == (4, "pieces")


def test_too_little_traffic_tells_nothing() -> None:
    trace = traffic(1, 160, 1.0, 0.0)
    assert tokens_needed(trace) == 160
    assert measure_skew(trace) is not None
    assert measure_skew(trace_of_sample(trace.sample[1:], EXPERTS)) is None


def test_every_fraction_is_there() -> None:
    skew = measured(traffic(4, 60, 1.0, 0.0))
    assert tuple(at.fraction for at in skew.coverage) == FRACTIONS
    assert [at.experts for at in skew.coverage] == [4, 8, 16, 24, 40]


def test_the_same_seed_gives_the_same_skew() -> None:
    trace = traffic(4, 60, 1.0, 0.0)
    one, other = measured(trace).at(0.2), measured(trace).at(0.2)
    assert (one.luck, one.shuffled, one.shuffled_spread) == (other.luck, other.shuffled, other.shuffled_spread)


def test_an_lru_cache_that_holds_a_layer_misses_only_first_uses() -> None:
    skew = measured(traffic(4, 60, 1.0, 0.0))
    assert skew.lru_by_layer.shape == skew.lru_shuffled.shape == (LAYERS, EXPERTS + 1)
    assert skew.lru_global.shape == (LAYERS * EXPERTS + 1,)
    assert skew.lru_global[-1] == pytest.approx(skew.lru_by_layer[:, -1].mean())


def test_recency_is_what_a_shuffle_of_tokens_takes_away() -> None:
    skew = measured(traffic(16, 60, 0.0, 2.0))
    assert skew.lru_by_layer[:, 4].mean() > skew.lru_shuffled[:, 4].mean() + 0.1


def distinct(sample: NDArray[np.uint16]) -> bool:
    ordered = np.sort(sample, axis=-1)
    return bool((ordered[..., 1:] > ordered[..., :-1]).all())


def test_shuffled_time_keeps_popularity_and_moves_tokens() -> None:
    trace = traffic(4, 60, 1.0, 1.0)
    shuffled = shuffled_time(trace, np.random.default_rng(0))
    np.testing.assert_array_equal(count_sample(shuffled.sample, EXPERTS), count_sample(trace.sample, EXPERTS))
    assert distinct(shuffled.sample)
    moved = (shuffled.sample != trace.sample).any(axis=2).mean(axis=0)
    assert (moved > 0.5).all()
    for layer in range(LAYERS):  # whole choices move, and in each layer by themselves
        assert sorted(shuffled.sample[:, layer].tolist()) == sorted(trace.sample[:, layer].tolist())
    tokens = {token.tobytes() for token in trace.sample}
    assert sum(token.tobytes() in tokens for token in shuffled.sample) < 24


def test_shuffled_experts_are_liked_alike() -> None:
    trace = traffic(8, 250, 3.0, 0.0)
    shuffled = shuffled_experts(trace, np.random.default_rng(0))
    assert distinct(shuffled.sample)
    assert covered(count_sample(trace.sample, EXPERTS), 0.2) > 0.8
    np.testing.assert_allclose(count_sample(shuffled.sample, EXPERTS), 2000 * TOP_K / EXPERTS, rtol=0.3)
    np.testing.assert_array_equal(shuffled.phases["decode"].counts, count_sample(shuffled.sample, EXPERTS))


def test_shuffled_preferences_are_as_strong_and_not_in_common() -> None:
    parts = np.tile(np.arange(50.0), (3, 2, 1))
    shuffled = shuffled_preferences(parts, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(shuffled, axis=2), parts)
    assert not any(np.array_equal(shuffled[a, 0], shuffled[b, 0]) for a, b in ((0, 1), (1, 2), (0, 2)))
    assert not np.array_equal(shuffled[0, 0], shuffled[0, 1])
