"""Drawing by the Triton kernel, in the interpreter, against torch: the same number picks the same token."""

import numpy as np
import pytest
import torch
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from support.drawing import RULES, drawn

pytest.importorskip("triton")
KERNELS = TorchKernels(), triton_kernels()


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):  # as a card does
        yield


def assert_alike(logits, rules, uniform):
    expected, got = (drawn(kernels, logits, rules, uniform) for kernels in KERNELS)
    assert got == expected


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_the_same_number_picks_the_token_that_torch_picks(rule):
    rng = np.random.default_rng(7)
    logits = 3 * rng.standard_normal((2, 600), np.float32)
    logits[0] = np.round(logits[0])  # ties
    logits[1] /= 100  # flat
    assert_alike(logits, [rule] * 2, rng.random(2))


@pytest.mark.parametrize("vocab, rules", [(5, RULES[5::3]), (2100, RULES[::6])], ids=["few", "many"])
def test_each_row_has_rules_of_its_own(vocab, rules):
    rng = np.random.default_rng(vocab)
    assert_alike(3 * rng.standard_normal((len(rules), vocab), np.float32), rules, rng.random(len(rules)))


@pytest.mark.parametrize("rule", [{}, {"top_p": 0.99}, {"top_k": 20}, {"min_p": 0.5}], ids=str)
def test_what_is_forbidden_is_not_drawn(rule):
    logits = np.full((3, 40), -np.inf, np.float32)
    logits[:, [3, 17, 39]] = 0.0
    numbers = np.array([0.0, 0.66, 1 - 2.0**-53])
    assert drawn(KERNELS[1], logits, [rule] * 3, numbers) == [3, 17, 39]


def test_a_vocabulary_that_places_do_not_reach_is_refused():
    logits, one = torch.zeros(1, 1).expand(1, (1 << 20) + 1), torch.zeros(1)
    with pytest.raises(ValueError, match="1048577"):
        KERNELS[1].sample(logits, one, one.long(), one.double(), one, one.double(), one.long())
