"""DeviceMemory: what one user takes of an accelerator's memory, given back together."""

from collections.abc import Iterable, Sequence

import torch

from ..cpu_kernels.layout import KINDS, SPAN, padded
from ..cpu_kernels.layout import Record as Form
from ..gpu_kernels.device import Accelerator, DeviceMemoryError
from ..gpu_kernels.tensors import Record
from .errors import DeviceFullError
from .pack import PackedMatrix

_PLAIN = {"plain": torch.float32, "bf16": torch.bfloat16}


class DeviceMemory:
    """purpose: in words, for the message when it is too much."""

    def __init__(self, accelerator: Accelerator, purpose: str) -> None:
        self._accelerator, self._purpose = accelerator, purpose
        self._taken: list[torch.Tensor] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised. Raises DeviceFullError, and then gives all back."""
        try:
            self._taken.append(self._accelerator.empty(shape, dtype))
        except DeviceMemoryError as error:
            self.release()
            raise DeviceFullError(f"{self._purpose}: {error}; make a plan for less memory") from error
        return self._taken[-1]

    def record(self, rows: int, columns: int, forms: frozenset[Form]) -> Record:
        """Rows of activations in some forms."""
        wide, plain = padded(columns), next((form for form in ("plain", "bf16") if form in forms), None)
        quantised = "q8" in forms
        return Record(
            plain=self.empty((rows, wide), _PLAIN[plain]) if plain else None,
            codes=self.empty((rows, wide), torch.int8) if quantised else None,
            scales=self.empty((rows, wide // SPAN), torch.float32) if quantised else None,
        )

    def release(self) -> None:
        """Nothing may be queued on it."""
        for tensor in self._taken:
            self._accelerator.release(tensor)
        self._taken.clear()


def forms_for(matrices: Iterable[PackedMatrix]) -> frozenset[Form]:
    """The forms of activations that matrices read: what reads bfloat16 can round float32 by itself."""
    forms = {KINDS[matrix.kind].record for matrix in matrices}
    return frozenset(forms - {"bf16"} if "plain" in forms else forms)


def as_record(rows: dict[Form, torch.Tensor], columns: int) -> Record:
    """uint8 rows as the CPU lays its records out, [T, record_bytes], seen as the device's."""
    wide, plain, codes, scales = padded(columns), None, None, None
    for form, raw in rows.items():
        if form == "q8":
            codes, scales = raw[:, :wide].view(torch.int8), raw[:, wide : wide + 4 * (wide // SPAN)].view(torch.float32)
        else:
            plain = raw.view(_PLAIN[form])
    return Record(plain, codes, scales)
