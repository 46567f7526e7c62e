"""HybridExecutor: runs steps on a CPU with accelerators, between which experts may move."""

from collections.abc import Callable, Sequence

import numpy as np

from ..cpu_kernels.descriptor import ENTRY
from ..cpu_kernels.team import Team
from ..gpu_kernels.device import DeviceLostError
from ..gpu_kernels.kernels import Kernels
from ..placement.placed import Placement
from .cpu_ops import CpuOps
from .decoder import record
from .device_experts import DeviceExperts
from .hybrid_ops import HybridOps
from .pack import PackedWeights
from .residency import Residency
from .spec import ModelSpec
from .step_inputs import StepInputs

Note = Callable[[str, str], None]


class HybridExecutor:
    """An executor (see `executor.Executor`). residency: may be changed between steps. `note(name, detail)` is told what
    had to be given up."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: PackedWeights,
        ops: CpuOps,
        inputs: StepInputs,
        team: Team,
        residency: Residency,
        kernels: Sequence[Kernels],
        placement: Placement,
        note: Note | None = None,
    ) -> None:
        self.residency = residency
        self._spec, self._ops, self._inputs, self._team, self._note = spec, ops, inputs, team, note
        self._devices: dict[int, DeviceExperts] = {}
        try:
            for number, accelerator in enumerate(residency.accelerators):
                layers = tuple(n for n, experts in enumerate(placement.experts) if np.any(experts == number))
                if layers:
                    self._devices[number] = DeviceExperts(
                        accelerator, kernels[number], spec, weights, layers, inputs.limits.tokens, ops.buffers.normed
                    )
            residency.place(placement)
        except BaseException:
            self.close()
            raise
        self._record()

    def _record(self) -> None:
        hybrid = HybridOps(self._spec, self._ops, self._inputs, self._team, self.residency, self._devices)
        record(self._spec, hybrid)
        self._steps, self._segments = hybrid.steps, hybrid.segments

    @property
    def num_ops(self) -> int:
        return len(np.unique(np.concatenate([part.program.rows[0, :, ENTRY] for part in self._segments])))

    def run(self) -> None:
        """An accelerator that fails meanwhile is given up, and the step begins again without it."""
        while True:
            try:
                self.residency.settle()
                for step in self._steps:
                    step()
                return
            except DeviceLostError as error:
                self._give_up(error)

    def _give_up(self, error: DeviceLostError) -> None:
        """Do without the accelerators that failed. Raises the error if it is of none of those that are used."""
        lost = [number for number in self._devices if self._is_lost(number)]
        if not lost:
            raise error
        for number in lost:
            self.residency.drop(number)
            self._devices.pop(number).close()
        self._record()
        if self._note:
            self._note("accelerator_lost", f"{error}; the CPU computes its experts")

    def _is_lost(self, number: int) -> bool:
        try:
            self.residency.accelerators[number].synchronise()
        except DeviceLostError:
            return True
        return False

    def close(self) -> None:
        self.residency.close()
        for device in self._devices.values():
            device.close()
        self._devices.clear()
