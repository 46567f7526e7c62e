"""What a sample of decode tokens counts: uses of experts, as a trace keeps them."""

import numpy as np
from numpy.typing import NDArray

from .trace import PhaseCounts


def count_sample(sample: NDArray[np.uint16], num_experts: int) -> NDArray[np.float64]:
    """sample: [tokens, layers, top_k]. Activations [layers, experts] in it."""
    layers = sample.shape[1]
    numbered = sample + np.arange(layers)[:, None] * num_experts
    return np.bincount(numbered.ravel(), minlength=layers * num_experts).reshape(layers, num_experts).astype(np.float64)


def phase_of(sample: NDArray[np.uint16], num_experts: int) -> PhaseCounts:
    """The counts of a phase that had this sample alone, in steps of one token with equal weights."""
    tokens, layers, top_k = sample.shape
    counts = count_sample(sample, num_experts)
    return PhaseCounts(
        counts=counts,
        mass=counts / top_k,
        tokens=np.full(layers, float(tokens)),
        steps=float(tokens),
        distinct=np.full(layers, float(tokens * top_k)),
    )
