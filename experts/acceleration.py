"""Acceleration: the accelerators that a model is run on, and the executor that uses them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.team import Team
from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.kernels import Kernels
from ..placement.placed import Placement
from .cpu_ops import CpuOps
from .host_cost import HostCost
from .hybrid_executor import HybridExecutor
from .pack import PackedWeights
from .spec import ModelSpec
from .step_inputs import StepInputs

Note = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Stream:
    """Experts that are brought to an accelerator for one step. above: by MoE layer, the tokens of a step above which
    that pays (`placement.cost.CostModel.break_even`); slots: experts of each of the two banks."""

    above: Mapping[int, int]
    slots: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """accelerators: at least one, known by their number; kernels: of each; placement: what lies where at first.

    streams: by accelerator, of layers whose dense part is there or on the CPU. `note(name, detail)` is told what had to
    be given up; cost: how long the CPU should take, for a modelled clock.
    """

    accelerators: Sequence[Accelerator]
    kernels: Sequence[Kernels]
    placement: Placement
    streams: Mapping[int, Stream] = field(default_factory=dict)
    note: Note | None = None
    cost: HostCost | None = None

    def memory(self, rows: int, row_bytes: int) -> NDArray[np.uint8]:
        """Zeroed memory of the host that copies reach without a detour: uint8 [rows, row_bytes]."""
        pinned: NDArray[np.uint8] = self.accelerators[0].pinned((rows, row_bytes), torch.uint8).numpy()
        return pinned

    def executor(
        self, spec: ModelSpec, weights: PackedWeights, ops: CpuOps, inputs: StepInputs, team: Team
    ) -> HybridExecutor:
        """Raises DeviceFullError where the placement does not fit, before a weight is read."""
        return HybridExecutor(spec, weights, ops, inputs, team, self)
