"""Machine: the devices of a hardware profile as costs, with its estimates as they are or taken for slower."""

from .accelerator_cost import AcceleratorCost
from .cpu_cost import CpuCost
from .device_cost import DeviceCost, Slower
from .expert_cost import Branch, ExpertCost
from .hardware import HardwareProfile
from .shape import CPU, LayerShape, ModelShape
from .touch import Demand

AS_MEASURED = Slower()


class Machine:
    """cpu, accelerators: the devices. Times in milliseconds."""

    def __init__(self, hardware: HardwareProfile, shape: ModelShape, slower: Slower = AS_MEASURED) -> None:
        self.shape, self.cpu = shape, CpuCost(hardware.cpu, slower)
        self.accelerators = tuple(AcceleratorCost(profile, slower) for profile in hardware.accelerators)

    def device(self, number: int) -> DeviceCost:
        """Raises ValueError for one that the profile has not."""
        if number == CPU:
            return self.cpu
        if not 0 <= number < len(self.accelerators):
            raise ValueError(f"device {number} is not in the hardware profile: it has {len(self.accelerators)} cards")
        return self.accelerators[number]

    def hop_ms(self, source: int, target: int, tokens: int) -> float:
        """Bringing activations from device to device, by way of the host."""
        if source == target:
            return 0.0
        size = self.shape.hidden_size
        return self.device(source).fetch_ms(tokens, size) + self.device(target).send_ms(tokens, size)

    def round_trip_ms(self, source: int, target: int, tokens: int) -> float:
        return self.hop_ms(source, target, tokens) + self.hop_ms(target, source, tokens)

    def experts(self, layer: LayerShape, demand: Demand, dense_device: int, devices: set[int]) -> ExpertCost:
        """Of the experts on some devices of a layer whose activations come from `dense_device`."""
        return ExpertCost(demand, {device: self._branch(layer, demand, dense_device, device) for device in devices})

    def _branch(self, layer: LayerShape, demand: Demand, dense_device: int, device: int) -> Branch:
        cost, tokens = self.device(device), demand.tokens
        return Branch(
            call_ms=cost.call_ms,
            hop_ms=self.round_trip_ms(dense_device, device, tokens),
            table=cost.expert_ms(layer.expert, demand.chances.shape[1] - 1),
        )
