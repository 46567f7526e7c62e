"""Drawing in torch against the daemon's sampler: the same number picks the same token."""

import numpy as np
import pytest
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.sampler import Sampler
from isotherm.gpu_kernels.reference import TorchKernels
from support.drawing import RULES, drawn

KERNELS = TorchKernels()


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


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("vocab", [5, 700, 3000])
def test_the_same_number_picks_the_token_that_the_daemon_picks(vocab, rule):
    rng = np.random.default_rng(vocab)
    logits = 3 * rng.standard_normal((40, vocab), np.float32)
    logits[20:] = np.round(logits[20:])  # ties
    logits[:3] /= 100  # flat
    uniform = np.concatenate([[0.0, 1 - 2.0**-53], rng.random(38)])
    expected = [by_daemon(row, rule, number) for row, number in zip(logits, uniform, strict=True)]
    assert drawn(KERNELS, logits, [rule] * 40, uniform) == expected


def test_each_row_has_rules_of_its_own():
    rng = np.random.default_rng(1)
    logits, uniform = 3 * rng.standard_normal((len(RULES), 900), np.float32), rng.random(len(RULES))
    expected = [by_daemon(*case) for case in zip(logits, RULES, uniform, strict=True)]
    assert drawn(KERNELS, logits, RULES, uniform) == expected


def test_what_is_forbidden_is_not_drawn():
    logits = np.full((50, 40), -np.inf, np.float32)
    logits[:, [3, 17, 39]] = 0.0
    numbers = np.linspace(0, 1, 50, endpoint=False)
    for rule in ({}, {"top_p": 0.99}, {"top_k": 20}, {"min_p": 0.5}):
        assert drawn(KERNELS, logits, [rule] * 50, numbers) == [(3, 17, 39)[int(3 * number)] for number in numbers]
