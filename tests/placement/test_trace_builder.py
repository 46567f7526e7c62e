"""TraceBuilder: counts of steps against naive counting, and the ring of decode tokens."""

from collections import Counter

import numpy as np
import pytest
from isotherm.placement.trace import TraceError
from isotherm.placement.trace_builder import TraceBuilder
from numpy.typing import NDArray
from support.routing import random_sample

LAYERS, EXPERTS, TOP_K = (1, 2, 4), 6, 2
Step = tuple[NDArray[np.uint16], NDArray[np.float32]]


def builder(limit: int = 100) -> TraceBuilder:
    return TraceBuilder("5eed", LAYERS, EXPERTS, TOP_K, limit)


def step(rng: np.random.Generator, tokens: int) -> Step:
    """ids and weights [layers, tokens, top_k]."""
    ids = random_sample(rng, tokens, len(LAYERS), EXPERTS, TOP_K).transpose(1, 0, 2)
    return ids, rng.random(ids.shape, dtype=np.float32)


def of_sequences(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


def test_decode_steps_are_counted() -> None:
    rng, traced = np.random.default_rng(0), builder()
    steps = [step(rng, tokens) for tokens in (1, 3, 2)]
    for ids, weights in steps:
        traced.add_decode(ids, weights, np.arange(ids.shape[1]))
    found = traced.trace().phases["decode"]
    for layer in range(len(LAYERS)):
        uses = Counter(int(expert) for ids, _ in steps for expert in ids[layer].ravel())
        assert found.counts[layer].tolist() == [uses[expert] for expert in range(EXPERTS)]
        assert found.distinct[layer] == sum(len(set(ids[layer].ravel().tolist())) for ids, _ in steps)
        for expert in range(EXPERTS):
            mass = sum(float(weights[layer][ids[layer] == expert].sum()) for ids, weights in steps)
            assert found.mass[layer, expert] == pytest.approx(mass)
    assert found.tokens.tolist() == [6, 6, 6]
    assert found.steps == 3


def test_layers_of_a_prefill_step_may_have_different_numbers_of_tokens() -> None:
    ids, weights = step(np.random.default_rng(1), 5)
    traced = builder()
    traced.add_prefill([ids[0], ids[1], ids[2][:1]], [weights[0], weights[1], weights[2][:1]])
    traced.add_prefill([ids[0], ids[1], ids[2][:0]], [weights[0], weights[1], weights[2][:0]])
    found = traced.trace().phases["prefill"]
    assert found.tokens.tolist() == [10, 10, 1]
    assert found.counts.sum(axis=1).tolist() == [20, 20, 2]
    assert found.distinct[2] == TOP_K
    assert found.mass[2].sum() == pytest.approx(weights[2][:1].sum())


def test_prefill_takes_one_array_too() -> None:
    ids, weights = step(np.random.default_rng(1), 5)
    one, other = builder(), builder()
    one.add_prefill(ids, weights)
    other.add_prefill(list(ids), list(weights))
    np.testing.assert_array_equal(one.trace().phases["prefill"].counts, other.trace().phases["prefill"].counts)


def test_phases_are_counted_apart() -> None:
    ids, weights = step(np.random.default_rng(1), 1)
    traced = builder()
    traced.add_prefill(ids, weights)
    assert not traced.trace().phases["decode"].counts.any()
    assert len(traced.trace().sample) == 0


def test_the_sample_goes_sequence_by_sequence() -> None:
    rng, traced = np.random.default_rng(2), builder()
    steps = [step(rng, 2), step(rng, 2), step(rng, 1), step(rng, 1)]
    for (ids, weights), numbers in zip(steps, ((7, 3), (7, 3), (3,), (9,)), strict=True):
        traced.add_decode(ids, weights, of_sequences(*numbers))
    first, second, third, fourth = (ids.transpose(1, 0, 2) for ids, _ in steps)
    trace = traced.trace()
    wanted = [first[0], second[0], first[1], second[1], third[0], fourth[0]]
    np.testing.assert_array_equal(trace.sample, np.array(wanted))
    assert trace.starts.tolist() == [0, 2, 5]


@pytest.mark.parametrize("tokens", [1, 3])
def test_the_sample_is_what_came_last(tokens: int) -> None:
    rng, traced = np.random.default_rng(3), builder(limit=7)
    came = []
    for _ in range(9):
        ids, weights = step(rng, tokens)
        traced.add_decode(ids, weights, np.zeros(tokens, np.int64))
        came += list(ids.transpose(1, 0, 2))
        np.testing.assert_array_equal(traced.trace().sample, np.array(came[-7:]))
    assert traced.trace().starts.tolist() == [0]


def test_a_step_larger_than_the_sample_leaves_its_last_tokens() -> None:
    ids, weights = step(np.random.default_rng(4), 9)
    traced = builder(limit=4)
    traced.add_decode(ids, weights, np.zeros(9, np.int64))
    np.testing.assert_array_equal(traced.trace().sample, ids.transpose(1, 0, 2)[5:])


def test_a_trace_does_not_change_with_later_steps() -> None:
    rng, traced = np.random.default_rng(5), builder(limit=2)
    traced.add_decode(*step(rng, 2), of_sequences(0, 1))
    trace = traced.trace()
    sample = trace.sample.copy()
    traced.add_decode(*step(rng, 2), of_sequences(0, 1))
    assert trace.phases["decode"].steps == 1
    np.testing.assert_array_equal(trace.sample, sample)


def test_clear_forgets_counts_and_sample() -> None:
    traced = builder()
    traced.add_decode(*step(np.random.default_rng(6), 2), of_sequences(0, 1))
    traced.clear()
    trace = traced.trace()
    assert trace.empty
    assert (len(trace.sample), len(trace.starts)) == (0, 0)
    assert (trace.fingerprint, trace.layers, trace.num_experts, trace.top_k) == ("5eed", LAYERS, EXPERTS, TOP_K)


@pytest.mark.parametrize("wrong", [EXPERTS, -1])
def test_an_expert_that_does_not_exist_is_refused_and_nothing_counted(wrong: int) -> None:
    ids, weights = step(np.random.default_rng(7), 1)
    bad = ids.astype(np.int32)
    bad[1, 0, 1] = wrong
    traced = builder()
    with pytest.raises(TraceError, match=r"experts .* were chosen, but the model has 0 to 5"):
        traced.add_decode(bad, weights, of_sequences(0))
    with pytest.raises(TraceError, match=r"experts .* were chosen, but the model has 0 to 5"):
        traced.add_prefill(bad, weights)
    assert traced.trace().empty


def test_weights_that_are_no_numbers_are_refused_and_nothing_counted() -> None:
    ids, weights = step(np.random.default_rng(8), 1)
    weights[0, 0, 0] = np.nan
    traced = builder()
    with pytest.raises(TraceError, match="not all finite"):
        traced.add_decode(ids, weights, of_sequences(0))
    assert traced.trace().empty
    assert len(traced.trace().sample) == 0


def test_choices_of_another_shape_are_refused() -> None:
    ids, weights = step(np.random.default_rng(9), 2)
    traced = builder()
    with pytest.raises(TraceError, match=r"instead of \(3, 1, 2\)"):
        traced.add_decode(ids, weights, of_sequences(0))
    with pytest.raises(TraceError, match="not of 3 layers"):
        traced.add_prefill(ids[:2], weights[:2])
    with pytest.raises(TraceError, match="differ in shape"):
        traced.add_prefill(ids, weights[:, :1])
    with pytest.raises(TraceError, match=r"not \[tokens, 2\]"):
        traced.add_prefill(ids[..., :1], weights[..., :1])
