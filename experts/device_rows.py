"""DeviceRows: a buffer of activations on an accelerator, in all forms that something reads."""

from collections.abc import Iterable

import torch

from ..cpu_kernels.layout import SPAN, padded
from ..cpu_kernels.layout import Record as Form
from ..gpu_kernels.tensors import Record
from .device_memory import DeviceMemory

PLAIN = {"plain": torch.float32, "bf16": torch.bfloat16}

Forms = frozenset[Form]


def one_plain(forms: Iterable[Form]) -> Forms:
    """The forms that readers of these need: what reads bfloat16 can round float32 by itself."""
    wanted = frozenset(forms)
    return wanted - {"bf16"} if "plain" in wanted else wanted


class DeviceRows:
    """forms: all that are ever wanted."""

    def __init__(self, memory: DeviceMemory, rows: int, columns: int, forms: Iterable[Form]) -> None:
        wide, wanted = padded(columns), set(forms)
        self._plain = {form: memory.empty((rows, wide), PLAIN[form]) for form in sorted(wanted - {"q8"})}
        quantised = (((rows, wide), torch.int8), ((rows, wide // SPAN), torch.float32)) if "q8" in wanted else ()
        self._quantised = [memory.empty(shape, dtype) for shape, dtype in quantised]

    def record(self, forms: Forms, rows: int) -> Record:
        """The first rows of some forms, as of `one_plain`."""
        plain = next((self._plain[form][:rows] for form in ("plain", "bf16") if form in forms), None)
        codes, scales = (part[:rows] for part in self._quantised) if "q8" in forms else (None, None)
        return Record(plain, codes, scales)

    @property
    def plain(self) -> torch.Tensor:
        """The float32 form."""
        return self._plain["plain"]


def as_record(rows: dict[Form, torch.Tensor], columns: int) -> Record:
    """uint8 rows as the CPU lays its records out, [T, record_bytes], seen as the device's."""
    wide, plain, codes, scales = padded(columns), None, None, None
    for form, raw in rows.items():
        if form == "q8":
            codes, scales = raw[:, :wide].view(torch.int8), raw[:, wide : wide + 4 * (wide // SPAN)].view(torch.float32)
        else:
            plain = raw.view(PLAIN[form])
    return Record(plain, codes, scales)
