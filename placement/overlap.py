"""Times of devices that work at once: the mean of the longest of them, which is more than the longest mean."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]


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
