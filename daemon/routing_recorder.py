"""RoutingRecorder: takes what each step chose into a trace. Numbers of experts only: no text, no token."""

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..experts.model import Model
from ..placement.trace import RoutingTrace
from ..placement.trace_builder import TraceBuilder
from .choices import Choices, StepRows
from .step import Chunk, StepPlan


class Choosing(Protocol):
    """A runner that tells which experts the tokens of its last step went to."""

    def choices(self) -> Choices | None: ...


class RoutingRecorder:
    """Of a runner and its model. `record` is for the runner's thread; any thread may `take`."""

    def __init__(self, model: Model, runner: Choosing) -> None:
        """model: one with experts."""
        self.fingerprint = model.checkpoint.fingerprint
        self._model, self._runner = model, runner
        self._lock = threading.Lock()
        self._builder = _builder(model)
        self.news = threading.Event()  # something was recorded since `take`

    def record(self, plan: StepPlan) -> None:
        """Take in the step that the runner has just run."""
        choices = self._runner.choices()
        assert choices is not None, "the model has experts"
        with self._lock:
            if all(chunk.decodes for chunk in plan.chunks):
                self._builder.add_decode(choices.ids, choices.weights, _sequences(plan.chunks))
            else:
                self._add_mixed(plan.chunks, choices)
        if not self.news.is_set():
            self.news.set()

    def take(self) -> RoutingTrace:
        """What was recorded since the last time. It holds up the runner's thread for a moment only."""
        builder = _builder(self._model)
        with self._lock:
            builder, self._builder = self._builder, builder
            self.news.clear()
        return builder.trace()

    def _add_mixed(self, chunks: Sequence[Chunk], choices: Choices) -> None:
        rows = StepRows.of(chunks)
        if len(rows.decode):
            decoded = [chunk for chunk in chunks if chunk.decodes]
            self._builder.add_decode(*choices.decode(rows), _sequences(decoded))
        self._builder.add_prefill(*choices.prefill(rows))


def _sequences(chunks: Sequence[Chunk]) -> NDArray[np.int64]:
    """A number for the request of each chunk."""
    return np.array([hash(chunk.request_id) for chunk in chunks], np.int64)


def _builder(model: Model) -> TraceBuilder:
    routing = model.spec.routing
    assert routing is not None
    layers = tuple(layer for layer, is_moe in enumerate(model.spec.moe_layers) if is_moe)
    return TraceBuilder(model.checkpoint.fingerprint, layers, routing.num_experts, routing.top_k)
