"""Accelerator: what the rest of the program knows of a graphics card. `cuda` is one, `emulated` another.

Memory is given out against a budget. Work is queued on streams, in order on each; an event says when what was queued
before it is done. Host buffers for copies are pinned where the device can. Nobody else may tell which one it has.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

StreamName = Literal["compute", "to", "from"]  # work; copies to the device; copies from it


class DeviceError(Exception):
    """The device could not do something; the message names it and what was asked."""


class DeviceMemoryError(DeviceError):
    """It has no memory left for that. Nothing was allocated."""


class DeviceLostError(DeviceError):
    """A copy or kernel failed or did not end in time: what was queued since the last synchronisation is unknown. The
    device says so on each call, but for releasing memory, until it is reset."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an op does: bytes of device memory that it reads and writes, and operations by the kind of weights that they
    multiply ("other" for all else). kernels: how many launches it is."""

    nbytes: float = 0.0
    flops: float = 0.0
    kind: str = "other"
    kernels: int = 1


Costs = Cost | Callable[[], Cost]  # known, or asked for by a modelled clock once what is queued before it is done


class Event(Protocol):
    """A point in a stream."""

    def is_done(self) -> bool:
        """Whether all before it is done; never waits. Raises DeviceLostError if the device is known to have failed."""
        ...

    def since(self, earlier: "Event") -> float:
        """Seconds of the device between an earlier event of it and this one. Both must be done: else DeviceError."""
        ...


class Accelerator(Protocol):
    """name: "cuda:0" or "emulated:0". tensors: where torch puts its tensors. limit_bytes: the budget, which may be
    changed; it never falls below what is used. used_bytes: what was given out and not taken back. replays_calls: what
    was captured is called again, so that it may look at results from the host; else that ends in an error."""

    name: str
    tensors: torch.device
    replays_calls: bool

    @property
    def limit_bytes(self) -> int: ...

    @property
    def used_bytes(self) -> int: ...

    @property
    def free_bytes(self) -> int:
        """Memory that nobody uses, other programs counted. Raises DeviceLostError if the device does not tell."""
        ...

    def set_limit(self, nbytes: int) -> None:
        """Raises DeviceMemoryError below `used_bytes`, changing nothing."""
        ...

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised memory of the device. Raises DeviceMemoryError beyond the budget, or where others took it."""
        ...

    def release(self, tensor: torch.Tensor) -> None:
        """Take back what `empty` gave: that tensor, no view of it. What was queued may still use it. Raises ValueError
        for anything else, or the second time."""
        ...

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that copies reach without a detour; zeros."""
        ...

    def lock(self, memory: torch.Tensor) -> bool:
        """Have copies reach host memory of somebody else without a detour, as that of `pinned`, until `unlock`. Whether
        that can be. The memory must stay where it is; it may be mapped for reading only."""
        ...

    def unlock(self, memory: torch.Tensor) -> None:
        """End a `lock` of the same memory that was granted. Nothing may be queued on it."""
        ...

    def launch(self, work: Callable[[], object], cost: Costs) -> None:
        """Queue kernels on the compute stream. Raises DeviceLostError if the device is known to have failed."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: StreamName) -> None:
        """Queue a copy between host and device, or on the device. Both are contiguous and of the same bytes: else
        ValueError. For host memory that is not of `pinned` the host waits until it is done."""
        ...

    def record(self, stream: StreamName) -> Event:
        """An event after all that was queued on the stream."""
        ...

    def wait(self, stream: StreamName, event: Event) -> None:
        """What is queued on the stream from now on starts after the event."""
        ...

    def synchronise(self, event: Event | None = None) -> None:
        """The host waits for an event, or for everything. Raises DeviceLostError if something failed or does not end
        within the device's patience."""
        ...

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        """What replays the launches of `work` at the cost of one. They are done once now, so that who captures need not
        replay, though `work` may be called twice. It must launch kernels on the same tensors each time, on the
        compute stream, and neither allocate, record, wait nor synchronise: else DeviceError. Raises what launches
        do."""
        ...

    def host_work(self, seconds: float) -> AbstractContextManager[None]:
        """The host computes meanwhile, for what should take so many seconds: a modelled clock goes on by that. Devices
        that were opened together share their host's clock: tell one of them."""
        ...

    def now(self) -> float:
        """Seconds on the device's clock, as the host sees it: wall time, or that of the model."""
        ...

    def reset(self) -> None:
        """After a DeviceLostError: use the device again. What was queued is over; memory that it did not write to holds
        what it held. Raises DeviceLostError if the device does not come back."""
        ...
