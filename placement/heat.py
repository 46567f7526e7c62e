"""Heat: how much more than its fair share of a layer's tokens each expert gets."""

import numpy as np
from numpy.typing import NDArray


def fair_shares(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Activations [layers, experts] over what each expert of the layer would have if all were used alike; 1 in a layer
    without any."""
    means = counts.mean(axis=1, keepdims=True)
    shares: NDArray[np.float64] = np.divide(counts, means, out=np.ones_like(counts), where=means > 0)
    return shares


def squeezed(heat: NDArray[np.float64], columns: int) -> NDArray[np.float64]:
    """At most so many columns: each is the hottest of as many neighbours as it needs, so that no hot one is lost."""
    group = -(-heat.shape[1] // columns)
    hottest: NDArray[np.float64] = np.maximum.reduceat(heat, np.arange(0, heat.shape[1], group), axis=1)
    return hottest
