"""CostModel: how long a step of a model takes on a machine with its parts placed somewhere.

A step's time is the sum over layers of the dense part and of the longest of the devices' ways through the experts. A
mean and an interval: of the estimates' spreads (those of one source move together in all layers), of the trace's size,
and of what the model leaves out.
"""

from collections.abc import Callable, Iterable, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from .decode_cost import DecodeCost
from .device_cost import OF_ACCELERATORS, OF_CPU, Slower
from .hardware import HardwareProfile
from .interval import interval, together
from .machine import Machine
from .placed import Placement, Prediction, Traffic
from .prefill_cost import PrefillCost
from .routing import Routing
from .shape import CPU, ModelShape
from .times import Times
from .touch import Floats
from .trace import RoutingTrace

DECODE_ERROR, PREFILL_ERROR = 0.04, 0.05  # relative deviation of measurements from a model with exact estimates

Timing = Callable[[Machine, Routing], Times]


class CostModel:
    """Predicts decode and prefill. Without a trace each expert is as likely as any other. machine: with estimates as
    they are.

    Raises ValueError for a trace of a model of another shape; its methods raise UnknownKindError, also one, where the
    profile lacks a kind of weights.
    """

    def __init__(self, shape: ModelShape, hardware: HardwareProfile, trace: RoutingTrace | None = None) -> None:
        self.shape, self.hardware, self.trace = shape, hardware, trace
        if trace is not None:
            _check_trace(shape, trace)
        self._routing = Routing(shape, trace)
        self.machine = Machine(hardware, shape)
        self._decode = DecodeCost(self.machine, self._routing.decode)
        self._prefill = PrefillCost(self.machine, self._routing.prefill)

    def decode(self, placement: Placement, traffic: Traffic) -> Prediction:
        """A step in which each of the streams gets one token. Raises ValueError for a placement of another shape."""
        self._check(placement)
        times, error = self._timed(
            lambda machine, routing: DecodeCost(machine, routing.decode).step(placement, traffic)
        )
        sampling = sqrt(times.variance / self._seen_steps(traffic.streams)) / times.total_ms
        return _prediction(traffic.streams, times, together(error, sampling, DECODE_ERROR))

    def prefill(self, placement: Placement, traffic: Traffic, *, staging: bool = True) -> Prediction:
        """A prompt, alone on the machine; staging: accelerators have room for a layer's experts that are streamed to
        them. Raises ValueError for a placement of another shape."""
        self._check(placement)
        times, error = self._timed(
            lambda machine, routing: PrefillCost(machine, routing.prefill).prompt(placement, traffic, staging=staging)
        )
        return _prediction(traffic.prompt, times, together(error, PREFILL_ERROR))

    def share(self, layer: int) -> Floats:
        """float64 [num_experts]: how often a decode token chooses each expert; adds up to top_k."""
        return self._routing.share(layer, "decode")

    def touch(self, layer: int, streams: int) -> Floats:
        """float64 [num_experts]: the probability that a step of so many streams touches each expert."""
        return self._routing.decode(layer, streams).touch if self.shape.layers[layer].num_experts else np.zeros(0)

    def layer_ms(self, layer: int, dense_device: int, resident: NDArray[np.int8], traffic: Traffic) -> float:
        """Decode time of the layer with its experts on the devices `resident`, int8 [num_experts]."""
        return self._decode.layer_ms(layer, dense_device, resident, traffic)

    def expert_curve(self, layer: int, dense_device: int, device: int, traffic: Traffic) -> Floats:
        """float64 [num_experts + 1]: layer_ms with the 0 .. all hottest experts on `device`, the others on the CPU."""
        curve: Floats = self.expert_curves(layer, (dense_device,), [(device, CPU)], traffic)[device, CPU][0]
        return curve

    def expert_curves(
        self, layer: int, dense_devices: Sequence[int], pairs: Iterable[tuple[int, int]], traffic: Traffic
    ) -> dict[tuple[int, int], Floats]:
        """For each pair of devices, float64 [dense_devices, num_experts + 1]: layer_ms with the dense part on each of
        some devices, the 0 .. all hottest experts on the first of the pair and the others on the second."""
        return self._decode.curves(layer, dense_devices, pairs, traffic)

    def break_even(self, layer: int, device: int) -> int:
        """Prompt tokens of a chunk above which streaming the layer's experts to `device` beats the CPU, with the dense
        part on `device`; prefill_cost.MOST_TOKENS if it never does."""
        return self._prefill.break_even(layer, device)

    def _timed(self, timing: Timing) -> tuple[Times, float]:
        """The times, and the relative error of their sum by the estimates and, without a trace, by unknown skew."""
        times = timing(self.machine, self._routing)
        sources = OF_CPU + (OF_ACCELERATORS if self.hardware.accelerators else ())
        others = [timing(Machine(self.hardware, self.shape, Slower(source)), self._routing) for source in sources]
        if self.trace is None:
            others.append(timing(self.machine, Routing(self.shape, None, skewed=True)))
        return times, together(*(other.total_ms / times.total_ms - 1 for other in others))

    def _seen_steps(self, streams: int) -> float:
        """How many steps of so many streams the trace has seen, at least 1."""
        return max(1.0, min((self._routing.seen(layer) for layer in self.shape.moe_layers), default=0.0) / streams)

    def _check(self, placement: Placement) -> None:
        sizes = tuple(len(devices) for devices in placement.experts)
        if len(placement.dense) != len(self.shape.layers) or sizes != tuple(x.num_experts for x in self.shape.layers):
            raise ValueError(f"the placement is not one of {self.shape.name}: its layers or experts are others")


def _check_trace(shape: ModelShape, trace: RoutingTrace) -> None:
    for number in shape.moe_layers:
        layer = shape.layers[number]
        if trace.layers != shape.moe_layers or (trace.num_experts, trace.top_k) != (layer.num_experts, layer.top_k):
            raise ValueError(
                f"the trace has {len(trace.layers)} layers with {trace.top_k} of {trace.num_experts} experts, which "
                f"{shape.name} has not; record one of it by `isotherm profile`"
            )


def _prediction(tokens: int, times: Times, error: float) -> Prediction:
    value = 1e3 * tokens / times.total_ms
    low, high = interval(value, error)
    return Prediction(value=value, low=low, high=high, step_ms=times.total_ms, parts_ms=dict(times.parts))
