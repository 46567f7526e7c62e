"""Drawing by the Triton kernel, in the interpreter, against torch: the same number picks the same token."""

import numpy as np
import pytest
import torch
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.gpu_kernels.triton_kernels import triton_kernels

pytest.importorskip("triton")
KERNELS = TorchKernels(), triton_kernels()
RULES = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 100.0},
    {"temperature": 1e-45},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 10**6},
    {"top_p": 1e-6},
    {"top_p": 0.3, "temperature": 0.5},
    {"top_p": 0.95},
    {"top_p": 0.9999, "temperature": 3.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 300, "top_p": 0.97, "temperature": 5.0},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
]


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):  # as a card does
        yield


def drawn(kernels, logits, rules, uniform):
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    types = torch.float32, torch.int64, torch.float64, torch.float32
    columns = [
        torch.tensor([rule.get(name, value) for rule in rules], dtype=kind)
        for (name, value), kind in zip(defaults.items(), types, strict=True)
    ]
    out = torch.full((len(logits),), -7)
    kernels.sample(torch.from_numpy(logits), *columns, torch.from_numpy(uniform), out)
    return out.tolist()


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


@pytest.mark.parametrize("rule", [{"temperature": 0.0}, {"temperature": 1.0}], ids=str)
def test_a_row_that_is_not_finite_gets_no_token(rule):
    logits = np.zeros((4, 10), np.float32)
    logits[0, 4], logits[1, 9], logits[2] = np.nan, np.inf, -np.inf
    logits[3, 6] = 90.0
    assert drawn(KERNELS[1], logits, [rule] * 4, np.full(4, 0.5)) == [-1, -1, -1, 6]


def test_a_vocabulary_that_places_do_not_reach_is_refused():
    logits, one = torch.zeros(1, 1).expand(1, (1 << 20) + 1), torch.zeros(1)
    with pytest.raises(ValueError, match="1048577"):
        KERNELS[1].sample(logits, one, one.long(), one.double(), one, one.double(), one.long())
