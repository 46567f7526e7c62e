"""Traces: decay, merging and the share of the sample that each keeps."""

import numpy as np
import pytest
from isotherm.placement.trace import (
    RoutingTrace,
    TraceError,
    appended,
    check_same_model,
    decayed,
    empty_trace,
    last_tokens,
    merged,
)
from support.routing import random_sample, trace_of_sample


def random_trace(
    seed: int, tokens: int = 12, starts: tuple[int, ...] = (0,), fingerprint: str = "5eed"
) -> RoutingTrace:
    sample = random_sample(np.random.default_rng(seed), tokens, 2, 6, 2)
    return trace_of_sample(sample, 6, starts, fingerprint)


def test_a_trace_of_nothing_is_empty() -> None:
    assert empty_trace("5eed", (0, 1), 6, 2).empty
    assert not random_trace(0).empty


def test_sequences_end_where_the_next_begins() -> None:
    assert random_trace(0, 12, (0, 5, 9)).ends.tolist() == [5, 9, 12]
    assert empty_trace("5eed", (0,), 4, 1).ends.tolist() == []


def test_decay_scales_every_count() -> None:
    trace = random_trace(0)
    decode, before = decayed(trace, 0.25).phases["decode"], trace.phases["decode"]
    for name in ("counts", "mass", "tokens", "steps", "distinct"):
        np.testing.assert_array_equal(getattr(decode, name), getattr(before, name) * 0.25)


def test_decay_can_differ_between_phases() -> None:
    trace = random_trace(0)
    trace.phases["prefill"] = trace.phases["decode"].times(1.0)
    faded = decayed(trace, {"prefill": 0.5, "decode": 1.0})
    assert faded.phases["prefill"].steps == 6.0
    assert faded.phases["decode"].steps == 12.0


def test_merging_adds_counts_times_weights() -> None:
    one, other = random_trace(1), random_trace(2)
    total = merged((one, other), (2.0, 0.5)).phases["decode"]
    for name in ("counts", "mass", "tokens", "steps", "distinct"):
        wanted = 2.0 * getattr(one.phases["decode"], name) + 0.5 * getattr(other.phases["decode"], name)
        np.testing.assert_allclose(getattr(total, name), wanted)


def test_merging_leaves_what_was_merged_alone() -> None:
    one, other = random_trace(1), random_trace(2)
    counts = one.phases["decode"].counts.copy()
    merged((one, other)).phases["decode"].counts += 1
    np.testing.assert_array_equal(one.phases["decode"].counts, counts)


def test_merging_joins_the_samples_in_order() -> None:
    one, other = random_trace(1, 12, (0, 7)), random_trace(2, 5, (0, 2))
    total = merged((one, other))
    np.testing.assert_array_equal(total.sample, np.concatenate((one.sample, other.sample)))
    assert total.starts.tolist() == [0, 7, 12, 14]


@pytest.mark.parametrize(
    ("lengths", "weights", "limit", "kept"),
    [
        ((100, 100), (1.0, 1.0), 50, (25, 25)),
        ((100, 100), (3.0, 1.0), 40, (30, 10)),
        ((100, 4), (1.0, 1.0), 50, (46, 4)),
        ((4, 100), (9.0, 1.0), 50, (4, 46)),
        ((10, 20, 100), (1.0, 1.0, 1.0), 90, (10, 20, 60)),
        ((0, 100), (1.0, 1.0), 50, (0, 50)),
        ((3, 3), (1.0, 1.0), 50, (3, 3)),
        ((3, 3), (1.0, 1.0), 0, (0, 0)),
    ],
)
def test_a_full_sample_keeps_the_last_of_each_by_weight(
    lengths: tuple[int, ...], weights: tuple[float, ...], limit: int, kept: tuple[int, ...]
) -> None:
    traces = [random_trace(seed, max(length, 1)) for seed, length in enumerate(lengths)]
    traces = [last_tokens(trace, length) for trace, length in zip(traces, lengths, strict=True)]
    total = merged(traces, weights, limit)
    wanted = [trace.sample[len(trace.sample) - count :] for trace, count in zip(traces, kept, strict=True)]
    np.testing.assert_array_equal(total.sample, np.concatenate(wanted))


def test_the_last_tokens_keep_the_bounds_between_sequences() -> None:
    trace = random_trace(0, 12, (0, 5, 9))
    assert last_tokens(trace, 12).starts.tolist() == [0, 5, 9]
    assert last_tokens(trace, 8).starts.tolist() == [0, 1, 5]
    assert last_tokens(trace, 7).starts.tolist() == [0, 4]
    assert last_tokens(trace, 2).starts.tolist() == [0]
    assert last_tokens(trace, 0).starts.tolist() == []
    np.testing.assert_array_equal(last_tokens(trace, 7).sample, trace.sample[5:])


def test_older_counts_halve_with_each_half_life_of_newer_tokens() -> None:
    old, new = random_trace(1), random_trace(2, 12)
    total = appended(old, new, half_life=6.0).phases["decode"]
    np.testing.assert_allclose(total.counts, old.phases["decode"].counts / 4 + new.phases["decode"].counts, rtol=1e-12)


def test_a_phase_without_newer_tokens_does_not_decay() -> None:
    old = random_trace(1)
    old.phases["prefill"] = old.phases["decode"].times(1.0)
    assert appended(old, random_trace(2), half_life=6.0).phases["prefill"].steps == 12.0


def test_without_a_half_life_nothing_decays() -> None:
    assert appended(random_trace(1), random_trace(2)).phases["decode"].steps == 24.0


@pytest.mark.parametrize("half_life", [0.0, -1.0, float("nan")])
def test_a_half_life_must_be_positive(half_life: float) -> None:
    with pytest.raises(TraceError, match="half-life must be more than 0"):
        appended(random_trace(1), random_trace(2), half_life)


def test_traces_of_two_models_are_refused_by_name() -> None:
    with pytest.raises(TraceError, match=r"model aaaa, the other of model bbbb.*record"):
        merged((random_trace(1, fingerprint="aaaa"), random_trace(2, fingerprint="bbbb")))


def test_traces_of_two_forms_are_refused_with_both() -> None:
    other = empty_trace("5eed", (1, 2), 8, 2)
    with pytest.raises(TraceError, match=r"6 experts, 2 for each token, in layers 1, 2.*8 experts, 2 for each token"):
        check_same_model(random_trace(1), other)


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, -1.0), (1.0, float("nan")), (1.0, float("inf"))])
def test_weights_must_be_positive(weights: tuple[float, float]) -> None:
    with pytest.raises(TraceError, match="must be positive numbers"):
        merged((random_trace(1), random_trace(2)), weights)


@pytest.mark.parametrize(("count", "weights"), [(0, None), (2, (1.0,))])
def test_each_trace_needs_a_weight(count: int, weights: tuple[float, ...] | None) -> None:
    with pytest.raises(TraceError, match=f"{count} traces cannot be merged"):
        merged([random_trace(1)] * count, weights)
