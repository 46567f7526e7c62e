"""CostModel: how long a step of a model takes on a machine with its parts placed somewhere."""

import numpy as np
from numpy.typing import NDArray

from .hardware import HardwareProfile
from .placed import Placement, Prediction, Traffic
from .shape import ModelShape
from .trace import RoutingTrace


class CostModel:
    """Predicts decode and prefill. Without a trace each expert is as likely as any other."""

    def __init__(self, shape: ModelShape, hardware: HardwareProfile, trace: RoutingTrace | None = None) -> None:
        self.shape, self.hardware, self.trace = shape, hardware, trace

    def decode(self, placement: Placement, traffic: Traffic) -> Prediction:
        """A step in which each of the streams gets one token."""
        raise NotImplementedError

    def prefill(self, placement: Placement, traffic: Traffic) -> Prediction:
        """A prompt, alone on the machine."""
        raise NotImplementedError

    def share(self, layer: int) -> NDArray[np.float64]:
        """float64 [num_experts]: how often a decode token chooses each expert; sums to top_k."""
        raise NotImplementedError

    def touch(self, layer: int, streams: int) -> NDArray[np.float64]:
        """float64 [num_experts]: the probability that a step of so many streams touches each expert."""
        raise NotImplementedError

    def layer_ms(self, layer: int, dense_device: int, resident: NDArray[np.int8], traffic: Traffic) -> float:
        """Decode time of the layer with its experts on the devices `resident`, int8 [num_experts]."""
        raise NotImplementedError

    def expert_curve(self, layer: int, dense_device: int, device: int, traffic: Traffic) -> NDArray[np.float64]:
        """float64 [num_experts + 1]: layer_ms with the 0 .. num_experts hottest experts on `device`, others on the CPU."""
        raise NotImplementedError

    def break_even(self, layer: int, device: int) -> int:
        """Prompt tokens of a step above which streaming the layer's experts to `device` beats the CPU."""
        raise NotImplementedError
