"""Routing by the Triton kernel, in the interpreter, against torch: bit for bit."""

import numpy as np
import pytest
import torch
from isotherm.gpu_kernels.kernels import Routing
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from support.torch_values import count_of, tensor

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):  # as a card does
        yield


def assert_alike(logits, top_k, **options):
    """The step has a token less than the buffers have rows."""
    results = []
    for kernels in TorchKernels(), triton_kernels():
        ids, weights = torch.full((len(logits), top_k), 99, dtype=torch.int32), torch.full((len(logits), top_k), 99.0)
        rule = {"softmax_chosen": False, "renormalise": False, "scale": 1.0} | options
        kernels.route(tensor(logits), Routing(top_k, **rule), ids, weights, count_of(len(logits) - 1))
        results.append((ids, weights))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("softmax_chosen", [False, True])
@pytest.mark.parametrize("experts, top_k", [(1, 1), (2, 2), (15, 3), (40, 33), (60, 4), (128, 8), (256, 8)])
def test_choices_and_weights_are_those_of_torch(experts, top_k, softmax_chosen, renormalise):
    logits = 3 * np.random.default_rng(experts).standard_normal((4, experts), np.float32)
    assert_alike(logits, top_k, softmax_chosen=softmax_chosen, renormalise=renormalise, scale=1.3)


@pytest.mark.parametrize("softmax_chosen", [False, True])
def test_logits_may_tie_be_far_apart_infinite_or_no_numbers(softmax_chosen):
    logits = np.zeros((6, 8), np.float32)
    logits[0] = np.nan
    logits[1], logits[1, 5] = np.nan, 1
    logits[2], logits[2, 6] = -np.inf, np.nan
    logits[3] = [1, 2, 1, 2, 2, 1, -0.0, 0.0]
    logits[4] = [200, -200, 100, 0, -1e30, 1e30, 3, 4]
    assert_alike(logits, 3, softmax_chosen=softmax_chosen)
