"""The time of a decode step: every stream gets one token."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .device_cost import Floats
from .expert_cost import NO_TIME, ExpertTime
from .machine import Machine
from .placed import Placement, Traffic
from .times import Times
from .touch import Demand

Demands = Callable[[int, int], Demand]  # of a layer and a number of tokens


def add_start(times: Times, machine: Machine, device: int) -> None:
    """What a step takes that is no layer's, and the embedding with what its device is told of the step."""
    cost = machine.device(device)
    times.add("hops", cost.send_ms(0, 0))
    times.add("calls", cost.launch_ms)
    times.add("step", machine.cpu.step_ms)


def add_head(times: Times, machine: Machine, device: int, tokens: int) -> None:
    """The logits of so many tokens, and their way to the sampler."""
    cost, head = machine.device(device), machine.shape.head
    times.add("head", cost.products_ms((head,), tokens))
    times.add("calls", cost.head_ms)
    times.add("hops", cost.fetch_ms(tokens, head.rows))


class DecodeCost:
    """On a machine. demands: how a step's tokens fall on a layer's experts."""

    def __init__(self, machine: Machine, demands: Demands) -> None:
        self._machine, self._shape, self._demands = machine.decoding, machine.shape, demands

    def step(self, placement: Placement, traffic: Traffic) -> Times:
        machine, streams, times = self._machine, traffic.streams, Times()
        at = placement.embed
        for number, device in enumerate(placement.dense):
            times.add("hops", machine.hop_ms(at, device, streams))
            self._add_dense(times, number, device, traffic)
            times.add_experts(self.experts(number, device, placement.experts[number], streams))
            at = device
        times.add("hops", machine.hop_ms(at, placement.head, streams))
        add_head(times, machine, placement.head, streams)
        add_start(times, machine, placement.embed)
        return times

    def layer_ms(self, number: int, device: int, resident: NDArray[np.int8], traffic: Traffic) -> float:
        return self.dense_ms(number, device, traffic) + self.experts(number, device, resident, traffic.streams).mean_ms

    def dense_ms(self, number: int, device: int, traffic: Traffic) -> float:
        """Of all but the experts."""
        times = Times()
        self._add_dense(times, number, device, traffic)
        return times.total_ms

    def _add_dense(self, times: Times, number: int, device: int, traffic: Traffic) -> None:
        cost, layer, streams = self._machine.device(device), self._shape.layers[number], traffic.streams
        times.add("attention", cost.context_ms(self._shape, layer, streams, traffic.context))
        times.add("dense", cost.products_ms(layer.dense, streams))
        times.add("norms and sums", cost.values_ms(self._shape, streams))
        times.add("calls", cost.ops_ms(layer))

    def experts(self, number: int, device: int, resident: NDArray[np.int8], streams: int) -> ExpertTime:
        """Of a step, with the dense part on `device`."""
        if not len(resident):
            return NO_TIME
        devices = {int(each) for each in np.unique(resident)}
        layer = self._shape.layers[number]
        return self._machine.experts(layer, self._demands(number, streams), device, devices).at(resident)

    def curves(
        self, number: int, dense: Sequence[int], pairs: Iterable[tuple[int, int]], traffic: Traffic
    ) -> dict[tuple[int, int], Floats]:
        """For each pair of devices, float64 [dense, experts + 1]: layer_ms with the dense part on each of some devices,
        the 0 .. all hottest experts on the first of the pair and the others on the second."""
        layer, machine, tokens, pairs = self._shape.layers[number], self._machine, traffic.streams, list(pairs)
        dense_ms = np.array([[self.dense_ms(number, each, traffic)] for each in dense])
        if not layer.num_experts:
            return dict.fromkeys(pairs, dense_ms)
        demand, devices = self._demands(number, tokens), {device for pair in pairs for device in pair}
        costs = [machine.experts(layer, demand, each, devices) for each in dense]
        return {pair: dense_ms + np.stack([cost.curve(*pair) for cost in costs]) for pair in pairs}
