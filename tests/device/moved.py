"""Arguments of kernels, moved to a device: views of one tensor stay views of one tensor there."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch


class Moved:
    """Calls with what lies on `device` instead of the host's tensors. Each storage is moved once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []  # so that no address is used twice

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, tuple):
            return tuple(self(part) for part in value)
        if is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("isotherm.gpu"):
            return replace(value, **{field.name: self(getattr(value, field.name)) for field in fields(value)})
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]
            self._kept.append(whole)
            self._storages[storage.data_ptr()] = whole.to(self._device, copy=True)
        there = self._storages[storage.data_ptr()].view(tensor.dtype)
        return there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
