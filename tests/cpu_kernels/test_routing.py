"""Routing and grouping against their definitions, hand-solvable cases first."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.routing import GROUP_FIELDS, ROUTE_FIELDS, SOFTMAX_CHOSEN, group, route
from support.ops import run_op


def routed(logits, top_k, *, score=0, renormalise=0, scale=1.0, threads=1):
    """(ids, weights) of the kernel."""
    ids = np.full((len(logits), top_k), -1, np.int64)
    weights = np.full((len(logits), top_k), np.nan, np.float32)
    fields = {"logits": logits, "logits_stride": logits.strides[0], "num_experts": logits.shape[1], "top_k": top_k}
    fields |= {"score": score, "renormalise": renormalise, "scale": scale, "ids": ids, "weights": weights}
    run_op(route, ROUTE_FIELDS, fields, step={N_TOKENS: len(logits)}, threads=threads)
    return ids, weights


def grouped(ids, num_experts, tokens=None):
    """(offsets, order, position, active) of the kernel."""
    tokens, top_k = (tokens, 1) if ids is None else ids.shape
    offsets, active, num_active = (np.full(n, -1, np.int64) for n in (num_experts + 1, num_experts, 1))
    order, position = (np.full(tokens * top_k, -1, np.int64) for _ in range(2))
    fields = {"num_experts": num_experts, "top_k": top_k, "offsets": offsets, "order": order, "position": position}
    fields |= {"active": active, "num_active": num_active, "ids": 0 if ids is None else ids}
    run_op(group, GROUP_FIELDS, fields, step={N_TOKENS: tokens}, threads=2)
    return offsets, order, position, active[: num_active[0]]


def test_weights_of_a_case_solved_by_hand():
    logits = np.log(np.array([[1, 4, 2, 1]], np.float32))
    ids, weights = routed(logits, 2)
    np.testing.assert_array_equal(ids, [[1, 2]])
    np.testing.assert_allclose(weights, [[0.5, 0.25]], rtol=1e-6)
    for options in ({"renormalise": 1}, {"score": SOFTMAX_CHOSEN}):
        np.testing.assert_allclose(routed(logits, 2, scale=3.0, **options)[1], [[2, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    "experts, top_k", [(1, 1), (2, 2), (8, 2), (15, 3), (16, 4), (17, 8), (60, 4), (128, 8), (256, 8)]
)
@pytest.mark.parametrize("score", [0, 1])
@pytest.mark.parametrize("renormalise", [0, 1])
def test_route_is_its_definition(experts, top_k, score, renormalise):
    logits = 3 * np.random.default_rng(experts).standard_normal((33, experts), np.float32)
    ids, weights = routed(logits, top_k, score=score, renormalise=renormalise, scale=1.5)
    expected = reference.route(logits, top_k, softmax_chosen=bool(score), renormalise=bool(renormalise), scale=1.5)
    np.testing.assert_array_equal(ids, expected[0])
    np.testing.assert_allclose(weights, expected[1], rtol=3e-6)


def test_ties_go_to_the_lower_expert():
    logits = np.array([[1, 2, 1, 2, 2], [0, 0, 0, 0, 0]], np.float32)
    np.testing.assert_array_equal(routed(logits, 4)[0], [[1, 3, 4, 0], [0, 1, 2, 3]])


def test_bad_logits_stay_in_range_and_name_each_expert_once():
    logits = np.full((3, 8), np.nan, np.float32)
    logits[1, 5], logits[2] = 1, -np.inf
    logits[2, 6] = np.nan
    ids, weights = routed(logits, 3)
    np.testing.assert_array_equal(ids, [[0, 1, 2], [5, 0, 1], [0, 1, 2]])
    np.testing.assert_array_equal(weights[1], [1, 0, 0])
    assert np.isnan(weights[0]).all()


def test_a_token_is_routed_alike_alone_and_by_two_threads():
    logits = np.random.default_rng(1).standard_normal((32, 60), np.float32)
    ids, weights = routed(logits, 4, threads=2)
    for token in range(32):
        alone = routed(logits[token : token + 1], 4)
        np.testing.assert_array_equal(alone[0][0], ids[token])
        np.testing.assert_array_equal(alone[1][0], weights[token])


@pytest.mark.parametrize("tokens, experts, top_k", [(1, 4, 2), (2, 8, 1), (17, 8, 2), (33, 60, 4), (200, 3, 3)])
def test_group_is_its_definition(tokens, experts, top_k):
    rng = np.random.default_rng(tokens)
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int64)
    for got, expected in zip(grouped(ids, experts), reference.group(ids, experts), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_without_ids_every_token_goes_to_the_one_expert():
    offsets, order, position, active = grouped(None, 1, tokens=5)
    np.testing.assert_array_equal(offsets, [0, 5])
    np.testing.assert_array_equal(order, range(5))
    np.testing.assert_array_equal(position, range(5))
    np.testing.assert_array_equal(active, [0])


def test_hidden_pairs_are_left_out_and_their_places_not_touched():
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(6)[:3] for _ in range(20)]).astype(np.int64)
    hidden = rng.random(ids.shape) < 0.4
    offsets, order, position, active = grouped(np.where(hidden, 6, ids), 6)
    expected = [(expert, pair) for expert in range(6) for pair in np.flatnonzero((ids == expert) & ~hidden)]
    shown = np.flatnonzero(~hidden)
    assert [int(pair) for pair in order[: len(shown)]] == [pair for _, pair in expected]
    np.testing.assert_array_equal(np.diff(offsets), np.bincount([expert for expert, _ in expected], minlength=6))
    np.testing.assert_array_equal(order[position[shown]], shown)
    np.testing.assert_array_equal(position[hidden.ravel()], -1)
    np.testing.assert_array_equal(active, np.unique(ids[~hidden]))


def test_with_all_pairs_hidden_no_expert_is_active():
    offsets, _, position, active = grouped(np.full((4, 2), 3, np.int64), 3)
    assert not offsets.any() and not len(active) and (position == -1).all()
