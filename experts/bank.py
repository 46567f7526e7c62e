"""Bank: the slots for experts of one layer in the memory of one accelerator."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..cpu_kernels.layout import KINDS, packed_shape
from ..gpu_kernels.device import Accelerator, Event
from ..gpu_kernels.tensors import SENTINEL, Matrix
from .pack import PackedMatrix, PackedWeights
from .random_weights import PARTS


@dataclass(slots=True)
class Bank:
    """matrices: gate, up and down, each with a leading dimension of slots. experts: the one in each slot, or SENTINEL;
    arriving: that on its way to a slot. table: int32 [num_experts] on the device, the slot of each expert that is
    there, or SENTINEL."""

    accelerator: Accelerator
    matrices: tuple[Matrix, Matrix, Matrix]
    table: torch.Tensor
    experts: list[int]
    arriving: dict[int, int] = field(init=False, default_factory=dict)
    _told: torch.Tensor  # the table as the host writes it
    _copied: Event | None = field(default=None)

    @classmethod
    def of(cls, accelerator: Accelerator, parts: Sequence[PackedMatrix], slots: int, num_experts: int) -> "Bank":
        """An empty one. parts: gate, up and down of any expert. Raises DeviceMemoryError, and then takes nothing."""
        taken: list[torch.Tensor] = []
        try:
            for matrix in parts:
                shape = (slots, *packed_shape(matrix.kind, matrix.rows, matrix.columns))
                taken.append(accelerator.empty(shape, torch.uint8))
            taken.append(accelerator.empty((num_experts,), torch.int32))
        except BaseException:
            for tensor in taken:
                accelerator.release(tensor)
            raise
        gate, up, down = (
            Matrix(matrix.kind, KINDS[matrix.kind], matrix.rows, matrix.columns, tiles)
            for matrix, tiles in zip(parts, taken[:3], strict=True)
        )
        told = accelerator.pinned((num_experts,), torch.int32)
        bank = cls(accelerator, (gate, up, down), taken[3], [SENTINEL] * slots, told)
        bank.tell()
        return bank

    @staticmethod
    def needed_bytes(parts: Sequence[PackedMatrix], slots: int, num_experts: int) -> int:
        """Memory that such a bank takes."""
        return slots * sum(matrix.nbytes for matrix in parts) + 4 * num_experts

    def free_slots(self) -> list[int]:
        """Those with no expert in them or on its way to them."""
        return [slot for slot, e in enumerate(self.experts) if e == SENTINEL and slot not in self.arriving]

    @property
    def nbytes(self) -> int:
        return sum(matrix.tiles.numel() for matrix in self.matrices) + 4 * self.table.numel()

    def tell(self) -> None:
        """Queue a copy of the table as `experts` says."""
        if self._copied is not None:
            self.accelerator.synchronise(self._copied)
        self._told.fill_(SENTINEL)
        for slot, expert in enumerate(self.experts):
            if expert != SENTINEL:
                self._told[expert] = slot
        self.accelerator.copy(self.table, self._told, "to")
        self._copied = self.accelerator.record("to")
        self.accelerator.wait("compute", self._copied)

    def release(self) -> None:
        """Give the memory back. Nothing may be queued on it."""
        for tensor in (*(matrix.tiles for matrix in self.matrices), self.table):
            self.accelerator.release(tensor)


def parts_of(weights: PackedWeights, layer: int, expert: int = 0) -> tuple[PackedMatrix, PackedMatrix, PackedMatrix]:
    """Gate, up and down of an expert in RAM."""
    gate, up, down = (weights.banks[f"layers.{layer}.experts.{part}"][expert] for part in PARTS)
    return gate, up, down
