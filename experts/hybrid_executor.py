"""HybridExecutor: runs steps on a CPU with accelerators, between which experts may move."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..cpu_kernels.descriptor import ENTRY
from ..cpu_kernels.team import Team
from ..gpu_kernels.device import DeviceLostError, DeviceMemoryError
from ..gpu_kernels.kernels import Kernels
from ..gpu_kernels.sizes import size_text
from ..placement.placed import Placement
from .cpu_ops import CpuOps
from .decoder import record
from .device_experts import DeviceExperts
from .device_ops import DeviceOps
from .hybrid_ops import HybridOps
from .pack import PackedWeights
from .residency import Residency
from .resident_room import ResidentRoom
from .spec import ModelSpec
from .step_inputs import StepInputs

Note = Callable[[str, str], None]


class HybridExecutor:
    """An executor (see `executor.Executor`). residency, room: may be changed between steps. started: when the last one
    was, on the accelerators' clock. `note(name, detail)` is told what had to be given up."""

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
        self.residency, self._placement = residency, placement
        self._spec, self._ops, self._inputs, self._team, self._note = spec, ops, inputs, team, note
        self._experts: dict[int, DeviceExperts] = {}
        self._homes: dict[int, DeviceOps] = {}
        try:
            for number, one in enumerate(kernels):
                self._take(number, one, weights)
            residency.place(placement)
            self.room = ResidentRoom(residency, weights)
            for home in self._homes.values():
                home.load()
        except BaseException:
            self.close()
            raise
        self._logits = torch.from_numpy(ops.buffers.logits)
        self._record()

    def _take(self, number: int, kernels: Kernels, weights: PackedWeights) -> None:
        """Take the memory of an accelerator for what it has to do."""
        placement, spec, accelerator = self._placement, self._spec, self.residency.accelerators[number]
        dense = tuple(layer for layer, device in enumerate(placement.dense) if device == number)
        places = {"embed": placement.embed, "head": placement.head}
        ends = tuple(name for name, device in places.items() if device == number)
        if dense or ends:
            self._homes[number] = DeviceOps(
                accelerator, kernels, spec, weights, self._inputs, self._ops.cache, dense, ends
            )
        guests = tuple(
            layer
            for layer, experts in enumerate(placement.experts)
            if placement.dense[layer] != number and np.any(experts == number)
        )
        if guests:
            tokens, normed = self._inputs.limits.tokens, self._ops.buffers.normed
            self._experts[number] = DeviceExperts(accelerator, kernels, spec, weights, guests, tokens, normed)

    def _record(self) -> None:
        hybrid = HybridOps(
            self._spec,
            self._ops,
            self._inputs,
            self._team,
            self.residency,
            self._placement,
            self._experts,
            self._homes,
        )
        record(self._spec, hybrid)
        self._steps, self._segments, self._mixtures = hybrid.steps, hybrid.segments, hybrid.mixtures

    @property
    def num_ops(self) -> int:
        return len(np.unique(np.concatenate([part.program.rows[0, :, ENTRY] for part in self._segments])))

    def run(self) -> None:
        """An accelerator that fails meanwhile is given up, one whose memory runs out gives a part of its experts back,
        and the step begins again.

        Raises DeviceLostError if one fails that has dense parts of layers, and so a part of the KV cache;
        DeviceMemoryError where there are no experts left to give back.
        """
        self.started = self.residency.accelerators[0].now()
        while True:
            try:
                self.residency.settle()
                for step in self._steps:
                    step()
                self._finish()
                return
            except DeviceLostError as error:
                self._give_up(error)
            except DeviceMemoryError as error:
                self._shed(error)

    def _shed(self, error: DeviceMemoryError) -> None:
        """Have the CPU compute some of the experts, wherever there are any. Raises the error if there are none."""
        shed = {
            accelerator.name: nbytes
            for number, accelerator in enumerate(self.residency.accelerators)
            if not self._is_lost(number) and (nbytes := self.room.shed(number))
        }
        if not shed:
            raise error
        given = ", ".join(f"{size_text(nbytes)} of {name}" for name, nbytes in shed.items())
        if self._note:
            self._note("accelerator_out_of_memory", f"{error}; the CPU computes experts that took {given}")

    def _finish(self) -> None:
        """Fetch what accelerators have left of the step, and wait for them."""
        for number, home in self._homes.items():
            home.accelerator.wait("from", home.accelerator.record("compute"))
            if number == self._placement.head and home.rows:
                home.accelerator.copy(self._logits[: home.rows], home.buffers.logits[: home.rows], "from")
            home.accelerator.synchronise(home.accelerator.record("from"))
        for mixture in self._mixtures:
            mixture.take_choices()

    def _give_up(self, error: DeviceLostError) -> None:
        """Do without the accelerators that failed. Raises the error if it is of none that can be done without."""
        lost = [number for number in {*self._experts, *self._homes} if self._is_lost(number)]
        if not lost or any(number in self._homes for number in lost):
            raise error
        for number in lost:
            self.residency.drop(number)
            self.room.forget(number)
            self._experts.pop(number).close()
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
        for experts in self._experts.values():
            experts.close()
        for home in self._homes.values():
            home.close()
        self._experts.clear()
        self._homes.clear()
