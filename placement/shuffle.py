"""Shuffled samples: what remains of a pattern when its cause is taken away."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .sample import phase_of
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
    """The trace of this sample alone."""
    prefill = PhaseCounts.zeros(sample.shape[1], trace.num_experts)
    return replace(trace, sample=sample, phases={"prefill": prefill, "decode": phase_of(sample, trace.num_experts)})
