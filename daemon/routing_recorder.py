"""RoutingRecorder: takes what each step chose into a trace. Numbers of experts only: no text, no token.

A step ends with cold caches, in which each call of an array library costs far more than its arithmetic. So a step that
decodes is only copied; after some steps all of them are counted together.
"""

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..experts.model import Model
from ..placement.trace import RoutingTrace
from ..placement.trace_builder import TraceBuilder
from .choices import Choices, Choosing, Ids, StepRows, Weights
from .step import Chunk, StepPlan

STAGED_TOKENS = 128


class RoutingRecorder:
    """Of a runner and its model. `record` is for the runner's thread; any thread may `take`."""

    def __init__(self, model: Model, runner: Choosing) -> None:
        """model: one with experts."""
        self.fingerprint = model.checkpoint.fingerprint
        self._model, self._runner = model, runner
        self._lock = threading.Lock()
        self._builder = _builder(model)
        self._staged = _Staged()
        self.news = threading.Event()  # something was recorded since `take`

    def record(self, plan: StepPlan) -> None:
        """Take in the step that the runner has just run."""
        choices = self._runner.choices()
        assert choices is not None, "the model has experts"
        with self._lock:
            if all(chunk.decodes for chunk in plan.chunks):
                self._staged.add(choices.ids.copy(), choices.weights.copy(), plan.chunks)
            else:
                self._stage_mixed(plan.chunks, choices)
            if len(self._staged.requests) >= STAGED_TOKENS:
                self._staged.count(self._builder)
                self._staged = _Staged()
        if not self.news.is_set():
            self.news.set()

    def take(self) -> RoutingTrace:
        """What was recorded since the last time. It holds up the runner's thread for a moment only."""
        builder, staged = _builder(self._model), _Staged()
        with self._lock:
            builder, self._builder = self._builder, builder
            staged, self._staged = self._staged, staged
            self.news.clear()
        staged.count(builder)
        return builder.trace()

    def _stage_mixed(self, chunks: Sequence[Chunk], choices: Choices) -> None:
        rows = StepRows.of(chunks)
        if len(rows.decode):
            self._staged.add(*choices.decode(rows), [chunk for chunk in chunks if chunk.decodes])
        self._builder.add_prefill(*choices.prefill(rows))


class _Staged:
    """Steps that decoded, not counted yet: ids and weights [layers, tokens, top_k] of each, and a request per token."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._ids: list[Ids] = []
        self._weights: list[Weights] = []

    def add(self, ids: Ids, weights: Weights, chunks: Sequence[Chunk]) -> None:
        self._ids.append(ids)
        self._weights.append(weights)
        self.requests += [chunk.request_id for chunk in chunks]

    def count(self, builder: TraceBuilder) -> None:
        if self.requests:
            ids, weights = np.concatenate(self._ids, axis=1), np.concatenate(self._weights, axis=1)
            builder.add_decode(ids, weights, _numbers(self.requests), [step.shape[1] for step in self._ids])


def _numbers(requests: Sequence[str]) -> NDArray[np.int64]:
    """A number for each request, the same as long as this process lives."""
    return np.array([hash(request) for request in requests], np.int64)


def _builder(model: Model) -> TraceBuilder:
    routing = model.spec.routing
    assert routing is not None
    layers = tuple(layer for layer, is_moe in enumerate(model.spec.moe_layers) if is_moe)
    return TraceBuilder(model.checkpoint.fingerprint, layers, routing.num_experts, routing.top_k)
