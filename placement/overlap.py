"""Times of devices that work at once: the mean of the longest of them, which is more than the longest mean."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]
_NEVER = 1e-12  # a probability below which nothing is called


@dataclass(slots=True)
class Longest:
    """mean and variance: float64 [points]."""

    mean: Floats
    variance: Floats


def longest(means: Floats, covariances: Floats) -> Longest:
    """Of normal times, for many points at once.

    means: float64 [devices, points]; covariances: float64 [devices, devices, points]. Exact for two devices; more are
    taken in turn, each maximum as if it were normal (C. E. Clark, The greatest of a finite set of random variables).
    """
    mean, variance, shared = means[0], covariances[0, 0], covariances[0]
    for device in range(1, len(means)):
        other, other_variance = means[device], covariances[device, device]
        spread = np.sqrt(np.maximum(variance + other_variance - 2 * shared[device], 0))
        ahead = np.divide(mean - other, spread, out=np.zeros_like(mean), where=spread > 0)
        first = np.where(spread > 0, ndtr(ahead), mean >= other)  # that the times so far are the longer ones
        density = spread * np.exp(-(ahead**2) / 2) / np.sqrt(2 * np.pi)
        both = mean * first + other * (1 - first) + density
        square = (mean**2 + variance) * first + (other**2 + other_variance) * (1 - first) + (mean + other) * density
        mean, variance = both, np.maximum(square - both**2, 0)
        shared = shared * first + covariances[device] * (1 - first)
    return Longest(mean, variance)


class Moments(NamedTuple):
    """means: float64 [devices, points]; covariances: float64 [devices, devices, points]."""

    means: Floats
    covariances: Floats


def split(means: Floats, covariances: Floats, called: Floats) -> tuple[Moments, Moments]:
    """The times where the first device has nothing to do, and where it has.

    called: float64 [points], how often it has. Else its time is 0, which no normal distribution knows. The others'
    times follow it by regression.
    """
    some = np.maximum(called, _NEVER)
    first, variance = means[0], covariances[0, 0]
    slopes = np.divide(covariances[0], variance, out=np.zeros_like(means), where=variance > 0)
    slopes[0] = 1.0
    idle = means - slopes * first
    calling = (means - (1 - called) * idle) / some
    rest = _proper(covariances - slopes[:, None] * slopes[None] * variance)
    rest[0], rest[:, 0] = 0.0, 0.0
    square = covariances + means[:, None] * means[None]  # the mean product of two times
    products = (square - (1 - called) * (rest + idle[:, None] * idle[None])) / some
    after = _proper(products - calling[:, None] * calling[None])
    return Moments(idle, rest), Moments(calling, after)


def _proper(covariances: Floats) -> Floats:
    """Without variances that rounding made negative."""
    at = np.arange(len(covariances))
    covariances[at, at] = np.maximum(covariances[at, at], 0.0)
    return covariances


def mixed(idle: Longest, calling: Longest, called: Floats) -> Longest:
    """Of both together."""
    mean = (1 - called) * idle.mean + called * calling.mean
    square = (1 - called) * (idle.variance + idle.mean**2) + called * (calling.variance + calling.mean**2)
    return Longest(mean, np.maximum(square - mean**2, 0.0))
