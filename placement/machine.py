"""Machine: the devices of a hardware profile as costs, with its estimates as they are or taken for slower."""

from functools import cached_property

import numpy as np

from .accelerator_cost import AcceleratorCost
from .cpu_cost import CpuCost
from .device_cost import VALUE_BYTES, DeviceCost, Floats, Slower
from .expert_cost import Branch, ExpertCost
from .hardware import HardwareProfile
from .shape import CPU, LayerShape, ModelShape
from .touch import Demand

AS_MEASURED = Slower()


class Machine:
    """cpu, accelerators: the devices. replays: it is decoding, and accelerators replay their launches. Times in
    milliseconds."""

    def __init__(
        self, hardware: HardwareProfile, shape: ModelShape, slower: Slower = AS_MEASURED, *, replays: bool = False
    ) -> None:
        self.shape, self.cpu = shape, CpuCost(hardware.cpu, slower)
        self.accelerators = tuple(AcceleratorCost(card, slower, replays=replays) for card in hardware.accelerators)
        self._hardware, self._slower, self._replays = hardware, slower, replays

    @cached_property
    def decoding(self) -> "Machine":
        """The same while it decodes."""
        return self if self._replays else Machine(self._hardware, self.shape, self._slower, replays=True)

    def device(self, number: int) -> DeviceCost:
        """Raises ValueError for one that the profile has not."""
        if number == CPU:
            return self.cpu
        if not 0 <= number < len(self.accelerators):
            raise ValueError(f"device {number} is not in the hardware profile: it has {len(self.accelerators)} cards")
        return self.accelerators[number]

    def hop_ms(self, source: int, target: int, tokens: int) -> float:
        """Bringing activations from device to device, by way of the host, and what is replayed there then."""
        if source == target:
            return 0.0
        size, there = self.shape.hidden_size, self.device(target)
        return self.device(source).fetch_ms(tokens, size) + there.send_ms(tokens, size) + there.replay_ms

    def experts(self, layer: LayerShape, demand: Demand, dense_device: int, devices: set[int]) -> ExpertCost:
        """Of the experts on some devices of a layer whose activations come from `dense_device`."""
        return ExpertCost(demand, {device: self._branch(layer, demand, dense_device, device) for device in devices})

    def _branch(self, layer: LayerShape, demand: Demand, dense_device: int, device: int) -> Branch:
        return Branch(
            call_ms=self.call_ms(dense_device, device),
            lone_call_ms=0.0 if device == dense_device and device != CPU and self._replays else None,
            hop_ms=self.way_ms(layer, dense_device, device, demand.tokens),
            table=self.expert_ms(layer, dense_device, device, demand.chances.shape[1] - 1),
        )

    def call_ms(self, dense_device: int, device: int) -> float:
        """Of a layer's experts on a device where others are elsewhere: with the dense part there, it goes on by a
        replay once these are back."""
        there = self.device(device)
        return there.call_ms + (there.replay_ms if device == dense_device else 0.0)

    def way_ms(self, layer: LayerShape, dense_device: int, device: int, tokens: int) -> float:
        """Of tokens to experts on another device, and what their outputs take on the way back, whatever they are."""
        if device == dense_device:
            return 0.0
        size: float = self.shape.hidden_size
        if dense_device == CPU and layer.sent_bytes is not None:
            size = layer.sent_bytes / VALUE_BYTES
        there = self.device(dense_device).fetch_ms(tokens, size) + self.device(device).send_ms(tokens, size)
        put = self.device(dense_device).replay_ms  # with the outputs of its own
        return there + self.hop_ms(device, dense_device, 0) + put

    def expert_ms(self, layer: LayerShape, dense_device: int, device: int, most: int) -> Floats:
        """float64 [most + 1]: of an expert that 0 .. most tokens go to, until its outputs, one for each of them, are
        where they are added up."""
        back = self.hop_ms(device, dense_device, 1) - self.hop_ms(device, dense_device, 0)
        passes = 1 if device == dense_device else 2  # it is put with the others, and added up
        each = back + passes * self.device(dense_device).sum_ms(self.shape.hidden_size)
        table: Floats = self.device(device).expert_ms(layer.expert, most) + each * np.arange(most + 1)
        return table
