"""StepClock: how long each replayed step takes, with hits on accelerators and misses computed or fetched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .decode_cost import DecodeCost
from .machine import Machine
from .placed import Placement, Traffic
from .replay import Touches
from .shape import CPU
from .touch import Demand

Floats = NDArray[np.float64]
_NONE = np.zeros(0, np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """at: int64 [touches], the device that each expert lay on when it was wanted; target: int64 [touches], the device
    whose slots its layer has; loads: bool [touches], it was brought there."""

    at: NDArray[np.int64]
    target: NDArray[np.int64]
    loads: NDArray[np.bool_]


class StepClock:
    """Of steps of a model on a machine, whose dense parts lie as in `placement`. Times in milliseconds."""

    def __init__(self, machine: Machine, placement: Placement, traffic: Traffic, touched: Touches, read_gb_s: float):
        self._machine, self._touched, self._read_gb_s = machine.decoding, touched, read_gb_s
        shape = machine.shape
        self._layers = shape.moe_layers
        self._dense = [placement.dense[layer] for layer in self._layers]
        self._streams = traffic.streams
        self._most = int(touched.tokens.max(initial=1))
        self._nbytes = np.array([shape.layers[layer].expert_bytes for layer in self._layers], np.float64)
        bare = replace(placement, experts=(_NONE,) * len(shape.layers))
        self._others_ms = DecodeCost(machine, _no_demand).step(bare, traffic).total_ms
        self._ways: dict[int, tuple[Floats, Floats]] = {}

    def fetching(self, served: Served) -> Floats:
        """float64 [steps]: where what is loaded comes before its layer can be computed, on its accelerator, while the
        CPU computes what is not."""
        at = np.where(served.loads, served.target, served.at)
        longest = np.maximum.reduce(
            [self._way_ms(device, at) + self._link_ms(device, served) for device in self._devices(at)]
        )
        read = self.read_bytes(served)  # the CPU or the link, from the same memory
        return np.asarray(np.maximum(self._others_ms + longest.sum(axis=1), read / self._read_gb_s / 1e6), np.float64)

    def computing(self, served: Served) -> Floats:
        """float64 [steps]: where the CPU computes what is missing, and loads come meanwhile for later steps."""
        longest = np.maximum.reduce([self._way_ms(device, served.at) for device in self._devices(served.at)])
        layers = self._others_ms + longest.sum(axis=1)
        links = [self._link_ms(device, served).sum(axis=1) for device in range(len(self._machine.accelerators))]
        read = self.read_bytes(served) + self.loaded_bytes(served)  # both from the same memory
        return np.asarray(np.maximum.reduce([layers, *links, read / self._read_gb_s / 1e6]), np.float64)

    def read_bytes(self, served: Served) -> Floats:
        """float64 [steps]: of experts that lay with the CPU."""
        return np.asarray(self._touched.sums(served.at == CPU) @ self._nbytes, np.float64)

    def loaded_bytes(self, served: Served) -> Floats:
        """float64 [steps]: over all links."""
        return np.asarray(self._touched.sums(served.loads) @ self._nbytes, np.float64)

    def _devices(self, at: NDArray[np.int64]) -> Sequence[int]:
        return [int(device) for device in np.unique(at)]

    def _way_ms(self, device: int, at: NDArray[np.int64]) -> Floats:
        """float64 [steps, layers]: of the experts that a device computes."""
        once, table = self._way(device)
        mine = at == device
        spent = self._touched.sums(np.where(mine, table[self._touched.layer, self._touched.tokens], 0.0))
        return spent + once * (self._touched.sums(mine) > 0)

    def _way(self, device: int) -> tuple[Floats, Floats]:
        """float64 [layers], what a layer takes once; float64 [layers, most + 1], an expert by its tokens."""
        if device not in self._ways:
            machine = self._machine
            layers = [machine.shape.layers[layer] for layer in self._layers]
            once = [
                machine.call_ms(dense, device) + machine.way_ms(layer, dense, device, self._streams)
                for layer, dense in zip(layers, self._dense, strict=True)
            ]
            table = np.stack([
                machine.expert_ms(layer, dense, device, self._most)
                for layer, dense in zip(layers, self._dense, strict=True)
            ])  # fmt: skip
            self._ways[device] = np.array(once), table
        return self._ways[device]

    def _link_ms(self, device: int, served: Served) -> Floats:
        """float64 [steps, layers]: what is loaded to a device."""
        if device == CPU:
            return np.zeros((self._touched.steps, self._touched.layers))
        each = np.array([self._machine.accelerators[device].weights_ms(nbytes) for nbytes in self._nbytes])
        return np.asarray(self._touched.sums(served.loads & (served.target == device)) * each, np.float64)


def _no_demand(layer: int, tokens: int) -> Demand:
    raise AssertionError("a placement without experts asks for none")
