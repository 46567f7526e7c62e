"""Segment: a stretch of a step that the CPU team runs without a stop."""

from dataclasses import dataclass

from ..cpu_kernels.program import FrozenProgram
from ..cpu_kernels.team import Team
from ..gpu_kernels.device import Accelerator
from .host_cost import HostCost, Part
from .step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class HostClock:
    """Tells a modelled clock how long the CPU's work should take."""

    accelerator: Accelerator
    cost: HostCost

    def charge(self, parts: tuple[Part, ...], inputs: StepInputs) -> None:
        self._charge(self.cost.seconds(parts, inputs))

    def charge_copy(self, nbytes: int) -> None:
        """Of so many bytes, by one thread."""
        self._charge(self.cost.copy_seconds(nbytes))

    def _charge(self, seconds: float) -> None:
        with self.accelerator.host_work(seconds):
            pass  # what it did decides how long it took, so that is known only now


@dataclass(frozen=True, slots=True)
class Segment:
    program: FrozenProgram
    team: Team
    inputs: StepInputs
    parts: tuple[Part, ...] = ()
    clock: HostClock | None = None

    def run(self) -> None:
        self.team.run(self.program, self.inputs.counts)
        if self.clock:
            self.clock.charge(self.parts, self.inputs)
