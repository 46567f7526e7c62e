"""Traces of made-up traffic, and recorders that hand them out."""

import threading

import numpy as np
from isotherm.placement.trace import RoutingTrace
from isotherm.placement.trace_builder import TraceBuilder

FINGERPRINT = "ab" * 32


def decoded(
    tokens: int = 200,
    *,
    layers: int = 3,
    experts: int = 8,
    skewed: bool = True,
    fingerprint: str = FINGERPRINT,
    seed: int = 0,
) -> RoutingTrace:
    """A trace of decode tokens with 2 experts each, in sequences of 20 tokens; skewed: the first experts are hot."""
    random = np.random.default_rng(seed)
    popularity = 1.0 / np.arange(1, experts + 1) ** 2 if skewed else np.ones(experts)
    scores = random.gumbel(size=(tokens, layers, experts)) + np.log(popularity)
    ids = np.argsort(-scores, axis=2)[:, :, :2]
    builder = TraceBuilder(fingerprint, tuple(range(layers)), experts, 2)
    for token in range(tokens):
        step = ids[token][:, None]
        builder.add_decode(step, np.full(step.shape, 0.5, np.float32), np.array([token // 20]))
    return builder.trace()


class GivenRecorder:
    """Hands out traces as if they had been recorded meanwhile."""

    def __init__(self, fingerprint: str = FINGERPRINT) -> None:
        self.fingerprint = fingerprint
        self.news = threading.Event()
        self._traces: list[RoutingTrace] = []

    def give(self, trace: RoutingTrace) -> None:
        self._traces.append(trace)
        self.news.set()

    def take(self) -> RoutingTrace:
        self.news.clear()
        return self._traces.pop(0) if self._traces else decoded(0, fingerprint=self.fingerprint)
