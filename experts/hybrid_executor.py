"""HybridExecutor: runs steps on a CPU with accelerators, and moves experts between steps."""

from collections.abc import Sequence

import numpy as np

from ..cpu_kernels.descriptor import ENTRY
from ..cpu_kernels.team import Team
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


class HybridExecutor:
    """An executor (see `executor.Executor`). residency: may be changed between steps."""

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
    ) -> None:
        self.residency = residency
        self._devices: dict[int, DeviceExperts] = {}
        try:
            for number, accelerator in enumerate(residency.accelerators):
                layers = tuple(
                    layer for layer, experts in enumerate(placement.experts) if np.any(experts == number)
                )
                if layers:
                    self._devices[number] = DeviceExperts(
                        accelerator, kernels[number], spec, weights, layers, inputs.limits.tokens, ops.buffers.normed
                    )
            residency.place(placement)
        except BaseException:
            self.close()
            raise
        hybrid = HybridOps(spec, ops, inputs, team, residency, self._devices)
        record(spec, hybrid)
        self._steps, self._segments = hybrid.steps, hybrid.segments

    @property
    def num_ops(self) -> int:
        return len(np.unique(np.concatenate([part.program.rows[0, :, ENTRY] for part in self._segments])))

    def run(self) -> None:
        self.residency.settle()
        for step in self._steps:
            step()

    def close(self) -> None:
        self.residency.close()
        for device in self._devices.values():
            device.close()
        self._devices.clear()
