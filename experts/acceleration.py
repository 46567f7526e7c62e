"""Acceleration: the accelerators that a model is run on, and the executor that uses them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.team import Team
from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.kernels import Kernels
from ..placement.placed import Placement
from .cpu_ops import CpuOps
from .hybrid_executor import HybridExecutor, Note
from .pack import PackedWeights
from .residency import Residency
from .spec import ModelSpec
from .step_inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """accelerators: at least one, known by their number; kernels: of each; placement: what lies where at first;
    note: see `HybridExecutor`."""

    accelerators: Sequence[Accelerator]
    kernels: Sequence[Kernels]
    placement: Placement
    note: Note | None = None

    def memory(self, rows: int, row_bytes: int) -> NDArray[np.uint8]:
        """Zeroed memory of the host that copies reach without a detour: uint8 [rows, row_bytes]."""
        pinned: NDArray[np.uint8] = self.accelerators[0].pinned((rows, row_bytes), torch.uint8).numpy()
        return pinned

    def executor(
        self, spec: ModelSpec, weights: PackedWeights, ops: CpuOps, inputs: StepInputs, team: Team
    ) -> HybridExecutor:
        """Raises DeviceFullError where the placement does not fit, before a weight is read."""
        residency = Residency(weights, spec.num_layers, self.accelerators)
        return HybridExecutor(spec, weights, ops, inputs, team, residency, self.kernels, self.placement, self.note)
