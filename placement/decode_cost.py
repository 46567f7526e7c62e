"""The time of a decode step: every stream gets one token."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .device_cost import Floats
from .expert_cost import NO_TIME, ExpertTime
from .machine import Machine
from .placed import Placement, Traffic
from .shape import LayerShape
from .times import Times
from .touch import Demand

Demands = Callable[[int, int], Demand]  # of a layer and a number of tokens


def add_ends(times: Times, machine: Machine, placement: Placement) -> None:
    """The embedding, what it is told of the step, and the ops after the last layer's attention and after its end."""
    embed, last, head = (machine.device(each) for each in (placement.embed, placement.dense[-1], placement.head))
    times.add("hops", embed.send_ms(0, 0))
    times.add("calls", embed.launch_ms + 2 * last.launch_ms + 2 * head.launch_ms)
    times.add("step", machine.cpu.step_ms)


def add_head(times: Times, machine: Machine, device: int, tokens: int) -> None:
    """The logits of so many tokens, and their way to the sampler."""
    cost, head = machine.device(device), machine.shape.head
    times.add("head", cost.products_ms((head,), tokens))
    times.add("hops", cost.fetch_ms(tokens, head.rows))


class DecodeCost:
    """On a machine. demands: how a step's tokens fall on a layer's experts."""

    def __init__(self, machine: Machine, demands: Demands) -> None:
        self._machine, self._shape, self._demands = machine, machine.shape, demands

    def step(self, placement: Placement, traffic: Traffic) -> Times:
        machine, shape, streams, times = self._machine, self._shape, traffic.streams, Times()
        at = placement.embed
        for number, layer in enumerate(shape.layers):
            device = placement.dense[number]
            times.add("hops", machine.hop_ms(at, device, streams))
            self._add_dense(times, layer, device, traffic)
            times.add_experts(self.experts(number, device, placement.experts[number], streams))
            at = device
        times.add("hops", machine.hop_ms(at, placement.head, streams))
        add_head(times, machine, placement.head, streams)
        add_ends(times, machine, placement)
        return times

    def layer_ms(self, number: int, device: int, resident: NDArray[np.int8], traffic: Traffic) -> float:
        return self.dense_ms(number, device, traffic) + self.experts(number, device, resident, traffic.streams).mean_ms

    def dense_ms(self, number: int, device: int, traffic: Traffic) -> float:
        """Of all but the experts."""
        times = Times()
        self._add_dense(times, self._shape.layers[number], device, traffic)
        return times.total_ms

    def _add_dense(self, times: Times, layer: LayerShape, device: int, traffic: Traffic) -> None:
        cost, streams = self._machine.device(device), traffic.streams
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
