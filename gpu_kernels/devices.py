"""Which accelerators there are, and how one is opened by its name."""

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

import torch

from .clock import Clock
from .cuda import Cuda
from .device import Accelerator, DeviceError
from .device_spec import Spec, parse_spec
from .emulated import Emulated
from .faults import Faults
from .kernels import Kernels
from .reference import TorchKernels
from .triton_kernels import triton_kernels

EMULATED = "emulated"


def list_devices(library: Any = torch) -> list[str]:
    """Names that `open_device` takes: of each card that torch sees, and of the emulated one."""
    count = library.cuda.device_count() if library.cuda.is_available() else 0
    return [*(f"cuda:{number}" for number in range(count)), EMULATED]


def parse_device(text: str) -> Spec | int:
    """Of "cuda:1" the number of the card; of "emulated:vram=2GiB,link=16GBps" the spec. Raises ValueError saying what
    would be right."""
    name, _, rest = text.strip().partition(":")
    if name == EMULATED:
        return parse_spec(rest)
    if name == "cuda" and (rest or "0").isdecimal():
        return int(rest or "0")
    raise ValueError(f"{text!r} is no accelerator; write cuda:0, or {EMULATED}:vram=2GiB,link=16GBps")


def open_device(
    what: str | Spec, *, clock: Clock | None = None, faults: Faults | None = None, late: Random | None = None
) -> Accelerator:
    """The others are for emulated devices, see `Emulated`. Raises ValueError for what names none, DeviceError for a
    card that is not there."""
    parsed = parse_device(what) if isinstance(what, str) else what
    if isinstance(parsed, int):
        return Cuda(parsed)
    return Emulated(parsed, clock=clock, faults=faults, late=late)


def open_devices(whats: Sequence[str | Spec]) -> tuple[Accelerator, ...]:
    """Several of one host: emulated ones share its clock. Raises as `open_device`, and DeviceError for two that have
    one name."""
    clock = Clock()
    devices = tuple(open_device(what, clock=clock) for what in whats)
    check_names([device.name for device in devices])
    return devices


def check_names(names: Sequence[str]) -> None:
    """Raises DeviceError for two devices that have one name."""
    free = next(number for number in count() if f"{EMULATED}:{number}" not in names)
    for name in names:
        if names.count(name) > 1:
            remedy = f"give one of them number={free}" if name.startswith(EMULATED) else "name each card once"
            raise DeviceError(f"there are two of {name}: {remedy}")


def kernels_for(device: Accelerator, note: Callable[[str, str], None]) -> Kernels:
    """Triton's for a card, the definitions of the ops for an emulated one. `note(name, detail)` is told where a card
    has to do with the definitions, too."""
    if device.tensors.type == "cpu":
        return TorchKernels()
    try:
        return triton_kernels()
    except DeviceError as error:
        note("torch_kernels", f"{device.name} runs the slow definitions of its kernels: {error}")
        return TorchKernels()
