"""Drawing in torch against the daemon's sampler: the same number picks the same token."""

import numpy as np
import pytest
import torch
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler
from isotherm.gpu_kernels.reference.sampling import NO_TOKEN, sample


class Fixed:
    """Random numbers that were drawn before."""

    def __init__(self, number):
        self._number = number

    def draw(self):
        return self._number


def by_daemon(logits, rule, uniform):
    sampler = Sampler(SamplingParams(**rule), prompt=[])
    sampler._uniforms = Fixed(float(uniform))
    return sampler.sample(logits)[0]


def by_torch(logits, rules, uniform):
    defaults = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    types = torch.float32, torch.int64, torch.float64, torch.float32
    columns = [
        torch.tensor([rule.get(name, value) for rule in rules], dtype=kind)
        for (name, value), kind in zip(defaults.items(), types, strict=True)
    ]
    out = torch.full((len(logits),), -7)
    sample(torch.from_numpy(logits), *columns, torch.from_numpy(uniform), out)
    return out.tolist()


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
    {"top_k": 500, "top_p": 0.97, "temperature": 5.0},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("vocab", [5, 700, 3000])
def test_the_same_number_picks_the_token_that_the_daemon_picks(vocab, rule):
    rng = np.random.default_rng(vocab)
    logits = 3 * rng.standard_normal((40, vocab), np.float32)
    logits[20:] = np.round(logits[20:])  # ties
    logits[:3] /= 100  # flat
    uniform = np.concatenate([[0.0, 1 - 2.0**-53], rng.random(38)])
    expected = [by_daemon(row, rule, number) for row, number in zip(logits, uniform, strict=True)]
    assert by_torch(logits, [rule] * 40, uniform) == expected


def test_each_row_has_rules_of_its_own():
    rng = np.random.default_rng(1)
    logits, uniform = 3 * rng.standard_normal((len(RULES), 900), np.float32), rng.random(len(RULES))
    expected = [by_daemon(*case) for case in zip(logits, RULES, uniform, strict=True)]
    assert by_torch(logits, RULES, uniform) == expected


def test_what_is_forbidden_is_not_drawn():
    logits = np.full((50, 40), -np.inf, np.float32)
    logits[:, [3, 17, 39]] = 0.0
    numbers = np.linspace(0, 1, 50, endpoint=False)
    for rule in ({}, {"top_p": 0.99}, {"top_k": 20}, {"min_p": 0.5}):
        assert by_torch(logits, [rule] * 50, numbers) == [(3, 17, 39)[int(3 * number)] for number in numbers]


@pytest.mark.parametrize("rule", [{"temperature": 0.0}, {"temperature": 1.0}], ids=str)
def test_a_row_that_is_not_finite_gets_no_token(rule):
    logits = np.zeros((4, 10), np.float32)
    logits[0, 4], logits[1, 9], logits[2] = np.nan, np.inf, -np.inf
    logits[3, 6] = 90.0
    assert by_torch(logits, [rule] * 4, np.full(4, 0.5)) == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 6]
