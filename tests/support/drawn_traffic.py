"""Routing traces that are made up."""

import numpy as np
from isotherm.placement.trace import PhaseCounts, RoutingTrace
from numpy.typing import NDArray


def trace_of(sample: NDArray[np.integer], num_experts: int, starts: tuple[int, ...] = (0,)) -> RoutingTrace:
    """A trace whose counts of decode are those of its sample, [tokens, layers, top_k]."""
    tokens, layers, top_k = sample.shape
    counts = np.zeros((layers, num_experts))
    for layer in range(layers):
        counts[layer] = np.bincount(sample[:, layer].reshape(-1), minlength=num_experts)
    phase = PhaseCounts(
        counts=counts,
        mass=counts / top_k,
        tokens=np.full(layers, float(tokens)),
        steps=float(tokens),
        distinct=np.full(layers, float(tokens * top_k)),
    )
    return RoutingTrace(
        fingerprint="00" * 32,
        num_experts=num_experts,
        top_k=top_k,
        layers=tuple(range(layers)),
        phases={"decode": phase, "prefill": phase},
        sample=sample.astype(np.uint16),
        starts=np.asarray(starts, np.int64),
    )


def drawn(weights: NDArray[np.float64], tokens: int, top_k: int, seed: int = 0) -> NDArray[np.uint16]:
    """uint16 [tokens, layers, top_k]: experts drawn without repeats by weights, [layers, experts]."""
    rng = np.random.default_rng(seed)
    keys = np.log(weights) + rng.gumbel(size=(tokens, *weights.shape))
    return np.argsort(-keys, axis=2)[:, :, :top_k].astype(np.uint16)


def skewed(layers: int, experts: int, power: float = 1.2, seed: int = 0) -> NDArray[np.float64]:
    """float64 [layers, experts]: weights 1 / rank ** power, in another order in each layer."""
    rng = np.random.default_rng(seed)
    weights = np.arange(1, experts + 1) ** -power
    return np.stack([rng.permutation(weights) for _ in range(layers)])
