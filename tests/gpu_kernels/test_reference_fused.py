"""Fused multiply-adds by float64: rounded once, also where float64 lands between two float32."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from isotherm.gpu_kernels.reference.fused import fma


def nearest(exact: Fraction) -> np.float32:
    """The float32 nearest to a number that is not in the middle of two."""
    guess = np.float32(float(exact))
    near = (np.nextafter(guess, np.float32(side)) for side in (-np.inf, np.inf))
    return min((guess, *near), key=lambda value: abs(Fraction(float(value)) - exact))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("last", [1, 2])
def test_a_sum_just_beside_the_middle_of_two_goes_to_its_side(last, direction, sign):
    """a * b is 2^-32 of itself less than half of c's last place: so float64 rounds the sum to the middle."""
    a, b, c = 2.0**-12 * (1 + 2.0**-16), 2.0**-12 * (1 - 2.0**-16), 1 + last * 2.0**-23
    a, b, c = (torch.tensor([value], dtype=torch.float32) for value in (a * direction * sign, b, c * sign))
    assert fma(a, b, c).equal(c)


def test_random_numbers_far_apart():
    rng = np.random.default_rng(0)
    a, b, c = ((rng.standard_normal(300) * np.exp2(rng.integers(-30, 30, 300))).astype(np.float32) for _ in range(3))
    got = fma(*map(torch.from_numpy, (a, b, c))).numpy()
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(got, [nearest(value) for value in exact])
