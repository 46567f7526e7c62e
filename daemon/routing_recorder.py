"""RoutingRecorder: takes what each step chose into a trace. Numbers of experts only: no text, no token.

A step ends with cold caches, in which each call of an array library costs far more than its arithmetic. So a step that
decodes is only copied; after some steps all of them are counted together.
"""

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..experts.model import Model
from ..placement.trace import PHASES, Phase, RoutingTrace
from ..placement.trace_builder import TraceBuilder
from .choices import Choices, Choosing, Ids, StepRows, Weights
from .recent_use import RecentUse
from .step import Chunk, StepPlan

STAGED_TOKENS = 128


class RoutingRecorder:
    """Of a runner and its model. `record` is for the runner's thread; any thread may `take`."""

    def __init__(self, model: Model, runner: Choosing) -> None:
        """model: one with experts."""
        routing = model.spec.routing
        assert routing is not None
        self.fingerprint, self.layers = model.checkpoint.fingerprint, _moe_layers(model)
        self.num_experts, self.top_k = routing.num_experts, routing.top_k
        self._runner = runner
        self._lock = threading.Lock()
        self._builder = self._new_builder()
        self._staged = _Staged()
        self._recent = {phase: RecentUse(len(self.layers), self.num_experts) for phase in PHASES}
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
                self._recent["decode"].add(*self._staged.count(self._builder))
                self._staged = _Staged()
        if not self.news.is_set():
            self.news.set()

    def take(self) -> RoutingTrace:
        """What was recorded since the last time. It holds up the runner's thread for a moment only."""
        builder, staged = self._new_builder(), _Staged()
        with self._lock:
            builder, self._builder = self._builder, builder
            staged, self._staged = self._staged, staged
            self.news.clear()
        if staged.requests:
            counted = staged.count(builder)
            with self._lock:
                self._recent["decode"].add(*counted)
        return builder.trace()

    def recent(self, phase: Phase) -> RecentUse:
        """How often tokens of a phase chose each expert lately, those of the last steps too. Any thread may ask."""
        with self._lock:
            use = self._recent[phase].copy()
            staged = self._staged.ids if phase == "decode" else ()
        if staged:
            ids = np.concatenate(staged, axis=1)
            use.add(_counts(ids, self.num_experts), ids.shape[1])
        return use

    def _new_builder(self) -> TraceBuilder:
        return TraceBuilder(self.fingerprint, self.layers, self.num_experts, self.top_k)

    def _stage_mixed(self, chunks: Sequence[Chunk], choices: Choices) -> None:
        rows = StepRows.of(chunks)
        if len(rows.decode):
            self._staged.add(*choices.decode(rows), [chunk for chunk in chunks if chunk.decodes])
        counts = self._builder.add_prefill(*choices.prefill(rows))
        self._recent["prefill"].add(counts, len(rows.prefill))


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

    @property
    def ids(self) -> tuple[Ids, ...]:
        """Of each step."""
        return tuple(self._ids)

    def count(self, builder: TraceBuilder) -> tuple[NDArray[np.int64], int]:
        """Have a builder count them; how often each expert was chosen, and by how many tokens. There must be some."""
        ids, weights = np.concatenate(self._ids, axis=1), np.concatenate(self._weights, axis=1)
        sizes = [step.shape[1] for step in self._ids]
        return builder.add_decode(ids, weights, _numbers(self.requests), sizes), len(self.requests)


def _counts(ids: Ids, experts: int) -> NDArray[np.int64]:
    """How often each of so many experts was chosen, [layers, experts]. ids: [layers, tokens, top_k]."""
    flat = ids.reshape(len(ids), -1) + np.arange(len(ids))[:, None] * experts
    return np.bincount(flat.reshape(-1), minlength=len(ids) * experts).reshape(len(ids), experts)


def _numbers(requests: Sequence[str]) -> NDArray[np.int64]:
    """A number for each request, the same as long as this process lives."""
    return np.array([hash(request) for request in requests], np.int64)


def _moe_layers(model: Model) -> tuple[int, ...]:
    """The numbers of its layers that have experts."""
    return tuple(layer for layer, is_moe in enumerate(model.spec.moe_layers) if is_moe)
