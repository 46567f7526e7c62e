"""Shuffled traces: what remains of a pattern when its cause is taken away."""

import numpy as np

from .trace import RoutingTrace


def shuffled_experts(trace: RoutingTrace, rng: np.random.Generator) -> RoutingTrace:
    """Each token's choices in each layer turned to other experts, all alike. Nothing is left that pinning could use."""
    raise NotImplementedError


def shuffled_time(trace: RoutingTrace, rng: np.random.Generator) -> RoutingTrace:
    """Each layer's choices dealt to other tokens. Experts stay as popular as they were, their order is gone: what an LRU
    cache still hits is popularity, not recency."""
    raise NotImplementedError
