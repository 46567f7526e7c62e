"""Routing by definition, and runners whose steps are recorded."""

from collections.abc import Sequence

import numpy as np
from isotherm.daemon.routing_recorder import RoutingRecorder
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import StepPlan
from isotherm.experts.model import Model
from isotherm.experts.reference import ReferenceDecoder, route
from isotherm.placement.trace import Phase, PhaseCounts
from numpy.typing import NDArray

Layers = list[tuple[NDArray[np.int64], NDArray[np.float64]]]


def choices_by_definition(model: Model, tokens: Sequence[int]) -> Layers:
    """Per MoE layer the ids and weights [tokens, top_k]."""
    layers: Layers = []

    def observe(layer: int, states: NDArray[np.float64]) -> None:
        if model.spec.moe_layers[layer]:
            logits = states @ model.weights.dense(f"layers.{layer}.router").T.astype(np.float64)
            layers.append(route(logits, model.spec.routing))

    ReferenceDecoder(model).hidden(tokens, observe)
    return layers


class Recorded:
    """A runner whose steps are recorded, and kept."""

    def __init__(self, runner: DecoderRunner, recorder: RoutingRecorder) -> None:
        self.runner, self.recorder = runner, recorder
        self.block_size, self.vocab_size, self.max_context = runner.block_size, runner.vocab_size, runner.max_context
        self.num_blocks, self.max_step_tokens = runner.num_blocks, runner.max_step_tokens
        self.num_resident = runner.num_resident
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        logits = self.runner.execute(plan)
        self.recorder.record(plan)
        self.plans.append(plan)
        return logits


def counts_by_definition(
    model: Model, plans: Sequence[StepPlan], texts: dict[str, Sequence[int]]
) -> dict[Phase, PhaseCounts]:
    """What a trace of these steps must hold. texts: all tokens of each request."""
    routing = model.spec.routing
    assert routing is not None
    choices = {name: choices_by_definition(model, tokens) for name, tokens in texts.items()}
    layers = sum(model.spec.moe_layers)
    totals = {name: PhaseCounts.zeros(layers, routing.num_experts) for name in ("prefill", "decode")}
    for plan in plans:
        for name, total in totals.items():
            chunks = [chunk for chunk in plan.chunks if chunk.decodes == (name == "decode")]
            total.steps += bool(chunks)
            for layer in range(layers):
                touched: set[int] = set()
                for chunk in chunks:
                    end = chunk.start + len(chunk.tokens)
                    narrowed = model.spec.moe_layers[-1] and layer == layers - 1
                    positions = range(chunk.start, end)[-1:] if narrowed and chunk.sample else range(chunk.start, end)
                    if narrowed and not chunk.sample:
                        continue
                    for position in positions:
                        ids, weights = (part[position] for part in choices[chunk.request_id][layer])
                        total.counts[layer, ids] += 1
                        total.mass[layer, ids] += weights
                        total.tokens[layer] += 1
                        touched.update(ids.tolist())
                total.distinct[layer] += len(touched)
    return totals
