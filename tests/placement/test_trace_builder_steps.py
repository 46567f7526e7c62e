"""Steps that are counted together are counted as one by one."""

from dataclasses import fields

import numpy as np
import pytest
from isotherm.placement.trace import RoutingTrace, TraceError
from isotherm.placement.trace_builder import TraceBuilder
from support.routing import random_sample

SIZES = [1, 3, 1, 2, 1]


def recorded(*, together: bool) -> RoutingTrace:
    rng = np.random.default_rng(0)
    ids = random_sample(rng, sum(SIZES), 3, 6, 2).transpose(1, 0, 2)
    weights, sequences = rng.random(ids.shape), np.array([0, 0, 1, 2, 0, 0, 1, 2])
    builder = TraceBuilder("5eed", (1, 2, 4), 6, 2)
    if together:
        builder.add_decode(ids, weights, sequences, SIZES)
        return builder.trace()
    end = 0
    for size in SIZES:
        start, end = end, end + size
        builder.add_decode(ids[:, start:end], weights[:, start:end], sequences[start:end])
    return builder.trace()


def test_steps_together_are_as_one_by_one() -> None:
    got, expected = recorded(together=True), recorded(together=False)
    assert got.phases["decode"].distinct.tolist() != [2.0 * sum(SIZES)] * 3  # tokens of one step share experts
    for field in fields(got.phases["decode"]):
        values = (getattr(trace.phases["decode"], field.name) for trace in (got, expected))
        np.testing.assert_allclose(*values, rtol=1e-12, err_msg=field.name)
    np.testing.assert_array_equal(got.sample, expected.sample)
    np.testing.assert_array_equal(got.starts, expected.starts)


def test_sizes_must_be_those_of_the_tokens() -> None:
    ids = np.zeros((3, 4, 2), np.int64)
    ids[..., 1] = 1
    builder = TraceBuilder("5eed", (1, 2, 4), 6, 2)
    with pytest.raises(TraceError, match=r"steps of 5 tokens .* 4 tokens"):
        builder.add_decode(ids, np.ones(ids.shape), np.arange(4), [2, 3])
    assert builder.trace().empty
