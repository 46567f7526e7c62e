"""Shuffled samples: what remains of a pattern when its cause is taken away."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .trace import PhaseCounts, RoutingTrace


def shuffled_experts(trace: RoutingTrace, rng: np.random.Generator) -> RoutingTrace:
    """Each token's choices in each layer moved on by a random number of experts, so that no expert is liked more than
    another. Answers: how hot does the hottest look by luck alone, in so many choices?"""
    tokens, layers, _ = trace.sample.shape
    moved = rng.integers(trace.num_experts, size=(tokens, layers, 1))
    return _with_sample(trace, ((trace.sample + moved) % trace.num_experts).astype(np.uint16))


def shuffled_time(trace: RoutingTrace, rng: np.random.Generator) -> RoutingTrace:
    """Each layer's choices dealt to other tokens, of any sequence. Experts stay as popular as they were, their order is
    gone. Answers: what does an LRU cache hit by popularity alone, without recency?"""
    tokens, layers, _ = trace.sample.shape
    order = np.argsort(rng.random((tokens, layers)), axis=0)
    return _with_sample(trace, np.take_along_axis(trace.sample, order[:, :, None], axis=0))


def shuffled_preferences(parts: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """parts: counts [parts, layers, experts]. Each part prefers experts of its own in each layer, as strongly as
    before. Answers: what would a hot set be worth elsewhere if no two parts of the traffic had a liking in common?"""
    return rng.permuted(parts, axis=2)


def _with_sample(trace: RoutingTrace, sample: NDArray[np.uint16]) -> RoutingTrace:
    """The trace of this sample alone, as of steps of one token with equal weights."""
    tokens, layers, top_k = sample.shape
    counts = count_sample(sample, trace.num_experts)
    decode = PhaseCounts(
        counts=counts,
        mass=counts / top_k,
        tokens=np.full(layers, float(tokens)),
        steps=float(tokens),
        distinct=np.full(layers, float(tokens * top_k)),
    )
    prefill = PhaseCounts.zeros(layers, trace.num_experts)
    return replace(trace, sample=sample, phases={"prefill": prefill, "decode": decode})


def count_sample(sample: NDArray[np.uint16], num_experts: int) -> NDArray[np.float64]:
    """Activations [layers, experts] in a sample."""
    layers = sample.shape[1]
    numbered = sample + np.arange(layers)[:, None] * num_experts
    return np.bincount(numbered.ravel(), minlength=layers * num_experts).reshape(layers, num_experts).astype(np.float64)
