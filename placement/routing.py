"""Routing: how the tokens of a model choose experts, layer by layer, by a trace or without one."""

from .shape import ModelShape
from .touch import Demand, Floats, Steps, independent, neutral_share, share_of, skewed_share
from .trace import Phase, RoutingTrace

_MOST_DEMANDS = 1024  # kept


class Routing:
    """How tokens choose experts, layer by layer.

    trace: None for a shape whose experts are all alike, or skewed as experts often are.
    """

    def __init__(self, shape: ModelShape, trace: RoutingTrace | None, *, skewed: bool = False) -> None:
        self._shape, self._trace, self._skewed = shape, trace, skewed
        self._steps = Steps(trace) if trace is not None else None
        self._index = {number: index for index, number in enumerate(shape.moe_layers)}
        self._kept: dict[tuple[Phase | int, int, int], Demand] = {}

    def share(self, layer: int, phase: Phase) -> Floats:
        """float64 [num_experts] of a layer's number: how often a token of the phase chooses each; adds up to top_k."""
        here = self._shape.layers[layer]
        if self._trace is None:
            return (skewed_share if self._skewed else neutral_share)(here.num_experts, here.top_k)
        first: tuple[Phase, ...] = ("decode", "prefill") if phase == "decode" else ("prefill", "decode")
        return share_of(self._trace, self._index[layer], first)

    def decode(self, layer: int, tokens: int) -> Demand:
        return self._demand("decode", layer, tokens)

    def prefill(self, layer: int, tokens: int) -> Demand:
        return self._demand("prefill", layer, tokens)

    def _demand(self, phase: Phase, layer: int, tokens: int) -> Demand:
        here = self._shape.layers[layer]
        key = (phase, layer, tokens) if self._trace is not None else (here.num_experts, here.top_k, tokens)
        if key not in self._kept:
            if len(self._kept) >= _MOST_DEMANDS:
                self._kept.clear()
            self._kept[key] = self._made(phase, layer, tokens)
        return self._kept[key]

    def _made(self, phase: Phase, layer: int, tokens: int) -> Demand:
        share = self.share(layer, phase)
        if phase == "decode" and self._steps is not None and self._steps.enough(tokens):
            return self._steps.replay(self._index[layer], share, tokens)
        return independent(share, tokens)

    def seen(self, layer: int) -> float:
        """Decode tokens that were counted in a layer."""
        return float(self._trace.phases["decode"].tokens[self._index[layer]]) if self._trace is not None else 0.0
