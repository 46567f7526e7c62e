"""The verdict on pinning."""

import numpy as np
import pytest
from isotherm.placement.shuffle import shuffled_experts, shuffled_time
from isotherm.placement.trace import RoutingTrace, empty_trace
from isotherm.placement.verdict import judge, judge_popularity
from support.routing import random_sample, trace_of_sample

LAYERS, EXPERTS, TOP_K, LENGTH = 6, 32, 4, 64


def traffic(shared: float, own: float, sequences: int = 12) -> RoutingTrace:
    rng = np.random.default_rng(0)
    liking = shared * rng.normal(size=(1, LAYERS, EXPERTS))
    liking = liking + own * np.repeat(rng.normal(size=(sequences, LAYERS, EXPERTS)), LENGTH, axis=0)
    sample = random_sample(rng, sequences * LENGTH, LAYERS, EXPERTS, TOP_K, liking)
    return trace_of_sample(sample, EXPERTS, range(0, sequences * LENGTH, LENGTH))


def test_skewed_traffic_is_worth_pinning() -> None:
    verdict, skew = judge(traffic(shared=2.0, own=0.3))
    assert skew is not None
    assert verdict.pinning == "helps"
    hottest = f"{100 * skew.at(0.2).held_out:.0f} %"
    assert verdict.text.startswith(
        f"pinning will help this model: the hottest 20 % of the experts take {hottest} of the choices of traffic they "
        "were not learned from, where chance would give 20 %. With room for 6 of 32 experts in each layer, a cache"
    )
    assert "Recency" not in verdict.text


@pytest.mark.parametrize("shared", [2.0, 0.0])
def test_of_popularity_alone_it_says_the_same(shared: float) -> None:
    trace = traffic(shared=shared, own=0.3)
    (whole, _), quick = judge(trace), judge_popularity(trace)
    before, _, after = whole.text.partition(" With room for ")
    assert quick.pinning == whole.pinning
    assert quick.text == before
    assert after.count("pinned ones") == 1


@pytest.mark.parametrize("sequences", [1, 2, 12])
def test_a_shuffled_trace_is_not_worth_pinning(sequences: int) -> None:
    skewed = traffic(shared=2.0, own=0.3, sequences=max(sequences, 4))
    starts = range(0, len(skewed.sample), len(skewed.sample) // sequences)
    shuffled = shuffled_experts(trace_of_sample(skewed.sample, EXPERTS, starts), np.random.default_rng(1))
    verdict, _ = judge(shuffled)
    assert verdict.pinning == "does not help"
    assert verdict.text.startswith("pinning will not help this model: the hottest 20 % of the experts take ")
    assert "give the memory to the KV cache or to whole layers" in verdict.text


def test_likings_that_change_with_each_sequence_are_not_worth_pinning() -> None:
    verdict, skew = judge(traffic(shared=0.0, own=2.0))
    assert skew is not None
    assert verdict.pinning == "does not help"
    assert skew.at(0.2).same > 0.3
    pinned, kept = 100 * skew.at(0.2).by_layer.mean(), 100 * hit(skew.lru_by_layer)
    assert (
        f"most recently used has {kept:.0f} % of the choices ({100 * hit(skew.lru_shuffled):.0f} % if" in verdict.text
    )
    assert f"pinned ones {pinned:.0f} %. Recency says more than popularity here" in verdict.text


def hit(rates: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Of a cache of 20 % of 32 experts in each layer."""
    return float(rates[:, 6].mean())


def test_a_shuffle_of_tokens_alone_leaves_pinning_its_worth() -> None:
    verdict, _ = judge(shuffled_time(traffic(shared=2.0, own=0.3), np.random.default_rng(1)))
    assert verdict.pinning == "helps"


def test_a_little_skew_hardly_helps() -> None:
    verdict, skew = judge(traffic(shared=0.25, own=0.0, sequences=40))
    assert skew is not None
    assert skew.at(0.2).held_out > 0.22
    assert verdict.pinning == "does not help"
    assert verdict.text.startswith("pinning will hardly help this model")


def test_what_a_few_sequences_share_by_luck_is_not_enough() -> None:
    liked = np.repeat([0, 0, 5], 100).astype(np.uint16).reshape(-1, 1, 1)  # two of three prefer the same of ten experts
    verdict, skew = judge(trace_of_sample(liked, 10, (0, 100, 200)))
    assert skew is not None
    assert skew.at(0.2).held_out == pytest.approx(2 / 3)
    assert verdict.pinning == "does not help"


def test_a_sample_of_one_sequence_is_doubted() -> None:
    one = traffic(shared=2.0, own=0.0, sequences=4)
    assert "record several to be sure" in judge(trace_of_sample(one.sample, EXPERTS))[0].text
    assert "record several" not in judge(one)[0].text


@pytest.mark.parametrize("tokens", [0, 127])
def test_too_little_traffic_gets_no_verdict(tokens: int) -> None:
    trace = empty_trace("5eed", tuple(range(LAYERS)), EXPERTS, TOP_K)
    trace.sample = traffic(2.0, 0.0).sample[:tokens]
    trace.starts = np.zeros(min(tokens, 1), np.int64)
    verdict, skew = judge(trace)
    assert skew is None
    assert verdict.pinning == "unknown"
    assert f"the sample has {tokens} decode tokens and 128 are needed; record more" in verdict.text
