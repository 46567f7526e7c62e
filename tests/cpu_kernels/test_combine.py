"""Combining expert outputs against its definition, and bit for bit against itself."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.combine import FIELDS, combine
from isotherm.cpu_kernels.descriptor import N_TOKENS
from support.experts_sum import combined
from support.ops import run_op


def case(tokens, n, top_k, seed=0):
    rng = np.random.default_rng(seed)
    x, outs = (rng.standard_normal((rows, n), np.float32) for rows in (tokens, tokens * top_k))
    return x, outs, rng.permutation(tokens * top_k).astype(np.int64), rng.random((tokens, top_k), np.float32)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 100, 576])
@pytest.mark.parametrize("tokens, top_k", [(1, 1), (2, 8), (33, 2)])
def test_combine_is_its_definition(tokens, n, top_k):
    x, outs, position, weights = case(tokens, n, top_k)
    gate = np.linspace(-30, 5, tokens * 2, dtype=np.float32).reshape(tokens, 2)
    expected = reference.combine(x, outs, position, weights)
    np.testing.assert_allclose(combined(x, outs, position, weights), expected, rtol=1e-5, atol=1e-6)
    expected = reference.combine(x, outs, position, weights, gate[:, 0])
    np.testing.assert_allclose(combined(x, outs, position, weights, gate), expected, rtol=1e-5, atol=1e-6)


def test_no_weights_means_all_ones():
    x, outs, position, weights = case(3, 40, 2)
    np.testing.assert_array_equal(combined(x, outs, position), combined(x, outs, position, np.ones_like(weights)))


def test_a_token_gets_the_same_bits_alone_and_by_two_threads():
    x, outs, position, weights = case(31, 100, 4)
    together = combined(x, outs, position, weights, threads=2)
    for token in range(31):
        places = position[4 * token : 4 * token + 4].copy()
        alone = combined(x[token : token + 1], outs, places, weights[token : token + 1].copy())
        np.testing.assert_array_equal(alone[0], together[token])


def test_what_few_choices_give_was_added_before():
    x, outs, position, weights = case(4, 40, 2)
    fields = {"x": x.copy(), "x_stride": x.strides[0], "n": 40, "outs": outs, "outs_stride": outs.strides[0]}
    fields |= {"top_k": 2, "position": position, "weights": weights, "gate": 0, "gate_stride": 0, "few": 8}
    run_op(combine, FIELDS, fields, step={N_TOKENS: 4})
    np.testing.assert_array_equal(fields["x"], x)
    fields["few"] = 7
    run_op(combine, FIELDS, fields, step={N_TOKENS: 4})
    np.testing.assert_array_equal(fields["x"], combined(x, outs, position, weights))


@pytest.mark.parametrize("top_k", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [17, 576])
def test_experts_that_agree_give_exactly_what_one_gives(n, top_k):
    x, one, _, _ = case(200, n, 1)
    weights = np.random.default_rng(1).random((200, top_k), np.float32)
    weights /= weights.sum(axis=1, keepdims=True)
    agreed = np.repeat(one, top_k, axis=0)
    together = combined(x, agreed, np.arange(200 * top_k), weights)
    np.testing.assert_array_equal(together, combined(x, one, np.arange(200)))
