"""Routing traces for tests."""

from collections.abc import Sequence

import numpy as np
from isotherm.placement.sample import phase_of
from isotherm.placement.trace import RoutingTrace, empty_trace
from numpy.typing import NDArray

FINGERPRINT = "5eed"


def random_sample(
    rng: np.random.Generator,
    tokens: int,
    layers: int,
    experts: int,
    top_k: int,
    liking: NDArray[np.float64] | None = None,
) -> NDArray[np.uint16]:
    """Choices [tokens, layers, top_k]. liking: to be added to random scores, anything that broadcasts to [tokens,
    layers, experts]; scores have a standard deviation of about 1.3."""
    scores = rng.gumbel(size=(tokens, layers, experts)) + (0.0 if liking is None else liking)
    return np.argsort(-scores, axis=-1)[..., :top_k].astype(np.uint16)


def trace_of_sample(
    sample: NDArray[np.uint16], experts: int, starts: Sequence[int] = (0,), fingerprint: str = FINGERPRINT
) -> RoutingTrace:
    """A trace of nothing but these decode tokens, one a step."""
    trace = empty_trace(fingerprint, tuple(range(1, sample.shape[1] + 1)), experts, sample.shape[2])
    trace.phases["decode"] = phase_of(sample, experts)
    trace.sample = sample
    trace.starts = np.array(starts, np.int64)
    return trace
