"""Routing in torch: the bits of the CPU's kernel."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.routing import ROUTE_FIELDS, route
from isotherm.gpu_kernels.kernels import Routing
from isotherm.gpu_kernels.reference import TorchKernels
from support.ops import run_op
from support.torch_values import count_of, tensor


def routed(logits, top_k, **options):
    """(ids, weights) of the CPU and of torch."""
    ids, weights = np.empty((len(logits), top_k), np.int64), np.empty((len(logits), top_k), np.float32)
    rule = {"softmax_chosen": False, "renormalise": False, "scale": 1.0} | options
    fields = {"logits": logits, "logits_stride": logits.strides[0], "num_experts": logits.shape[1], "top_k": top_k}
    fields |= {"score": int(rule["softmax_chosen"]), "renormalise": int(rule["renormalise"]), "scale": rule["scale"]}
    run_op(route, ROUTE_FIELDS, fields | {"ids": ids, "weights": weights}, step={N_TOKENS: len(logits)})
    got = torch.full((len(logits), top_k), 99, dtype=torch.int32), torch.full((len(logits), top_k), 99.0)
    TorchKernels().route(tensor(logits), Routing(top_k, **rule), *got, count_of(len(logits)))
    return (ids, weights), got


def assert_alike(both):
    for expected, got in zip(*both, strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("softmax_chosen", [False, True])
@pytest.mark.parametrize("experts, top_k", [(1, 1), (2, 2), (15, 3), (17, 8), (60, 4), (256, 8)])
def test_choices_and_weights_are_those_of_the_cpu(experts, top_k, softmax_chosen, renormalise):
    logits = 3 * np.random.default_rng(experts).standard_normal((33, experts), np.float32)
    assert_alike(routed(logits, top_k, softmax_chosen=softmax_chosen, renormalise=renormalise, scale=1.3))


def test_logits_may_tie_be_far_apart_infinite_or_no_numbers():
    logits = np.zeros((6, 8), np.float32)
    logits[0] = np.nan
    logits[1], logits[1, 5] = np.nan, 1
    logits[2], logits[2, 6] = -np.inf, np.nan
    logits[3] = [1, 2, 1, 2, 2, 1, -0.0, 0.0]
    logits[4] = [200, -200, 100, 0, -1e30, 1e30, 3, 4]
    assert_alike(routed(logits, 3))


def test_tokens_beyond_the_step_are_left_alone():
    logits = tensor(np.random.default_rng(0).standard_normal((3, 8), np.float32))
    ids, weights = torch.full((3, 2), 99, dtype=torch.int32), torch.full((3, 2), 99.0)
    TorchKernels().route(logits, Routing(2, False, True, 1.0), ids, weights, count_of(2))
    assert (ids[2] == 99).all() and (weights[2] == 99).all() and (ids[:2] < 8).all()
