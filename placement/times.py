"""Times: the milliseconds of a step, by where they go."""

from dataclasses import dataclass, field

from .expert_cost import ExpertTime
from .shape import CPU


def device_name(device: int) -> str:
    return "the CPU" if device == CPU else f"gpu{device}"


@dataclass(slots=True)
class Times:
    """parts: by name. variance: ms^2, how much the total differs from step to step by the experts that are chosen."""

    parts: dict[str, float] = field(default_factory=dict)
    variance: float = 0.0

    @property
    def total_ms(self) -> float:
        return sum(self.parts.values())

    def add(self, part: str, milliseconds: float) -> None:
        if milliseconds:
            self.parts[part] = self.parts.get(part, 0.0) + milliseconds

    def add_experts(self, time: ExpertTime) -> None:
        """Devices work at once, so all of it goes to the longest of them."""
        self.variance += time.variance
        if time.device is not None:
            self.add("calls", time.call_ms)
            self.add("hops", time.hop_ms)
            self.add(f"experts on {device_name(time.device)}", time.mean_ms - time.call_ms - time.hop_ms)
