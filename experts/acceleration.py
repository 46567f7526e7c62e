"""Acceleration: the accelerators that a model is run on, and the executor that uses them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.team import Team
from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.kernels import Kernels
from ..placement.machine import Machine
from ..placement.placed import Placement
from ..placement.shape import CPU
from .cpu_ops import CpuOps
from .host_cost import HostCost
from .hybrid_executor import HybridExecutor
from .pack import PackedWeights
from .spec import ModelSpec
from .step_inputs import StepInputs

Note = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceleration:
    """accelerators: at least one, known by their number; kernels: of each; placement: what lies where at first.

    `note(name, detail)` is told what had to be given up; cost: how long the CPU should take, for a modelled clock.
    streaming: the machine by whose cost model experts of the CPU are brought to accelerators for a chunk of a prompt.
    free_memory: bytes of RAM that can still be taken, for layers of an accelerator that is lost; None for enough.
    kv_blocks: how many blocks of the KV cache each accelerator has room for; None is for as many as there are.
    """

    accelerators: Sequence[Accelerator]
    kernels: Sequence[Kernels]
    placement: Placement
    note: Note | None = None
    cost: HostCost | None = None
    streaming: Machine | None = None
    free_memory: Callable[[], int] | None = None
    kv_blocks: Sequence[int] | None = None

    def kv_pool(self, device: int, num_blocks: int) -> int:
        """Of `num_blocks` blocks of the KV cache, for how many an accelerator, or the CPU, has room."""
        return num_blocks if self.kv_blocks is None or device == CPU else min(self.kv_blocks[device], num_blocks)

    def kv_resident(self, num_blocks: int) -> int:
        """How many blocks a step may use: those for which all have room that run attention."""
        return min(self.kv_pool(device, num_blocks) for device in self.placement.dense)

    def kv_in_ram(self, num_blocks: int) -> tuple[int, ...]:
        """The layers whose keys and values need room in RAM: those of the CPU, and those of accelerators that have no
        room for every block."""
        return tuple(
            layer
            for layer, device in enumerate(self.placement.dense)
            if device == CPU or self.kv_pool(device, num_blocks) < num_blocks
        )

    def memory(self, rows: int, row_bytes: int) -> NDArray[np.uint8]:
        """Zeroed memory of the host that copies reach without a detour: uint8 [rows, row_bytes]."""
        pinned: NDArray[np.uint8] = self.accelerators[0].pinned((rows, row_bytes), torch.uint8).numpy()
        return pinned

    def executor(
        self, spec: ModelSpec, weights: PackedWeights, ops: CpuOps, inputs: StepInputs, team: Team
    ) -> HybridExecutor:
        """Raises DeviceFullError where the placement does not fit, before a weight is read."""
        return HybridExecutor(spec, weights, ops, inputs, team, self)
