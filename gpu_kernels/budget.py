"""Budget: how much of a device's memory may be given out, and to which tensors it was."""

import torch

from .device import DeviceMemoryError
from .sizes import size_text


class Budget:
    """total: what the device has. limit <= total, used <= limit, in bytes."""

    def __init__(self, name: str, limit: int, total: int) -> None:
        self.limit, self.used = total, 0
        self._name, self._total = name, total
        self._held: dict[int, torch.Tensor] = {}
        self._storages: dict[int, int] = {}  # by address: how many of the tensors lie there
        self.set_limit(limit)

    def set_limit(self, nbytes: int) -> None:
        """Raises DeviceMemoryError below `used` or above `total`, changing nothing."""
        if nbytes < self.used:
            raise DeviceMemoryError(
                f"{self._name} has {size_text(self.used)} in use, so its limit cannot become {size_text(nbytes)}: "
                "take something from it first"
            )
        if nbytes > self._total:
            raise DeviceMemoryError(
                f"{self._name} has {size_text(self._total)} of memory, so its limit cannot become {size_text(nbytes)}"
            )
        self.limit = nbytes

    def check(self, nbytes: int, others: int = 0) -> None:
        """Raises DeviceMemoryError where there is no room for so many bytes more; others: what other programs hold."""
        room = min(self.limit, self._total - others) - self.used
        if nbytes > room:
            taken = f", {size_text(others)} by other programs" if others else ""
            raise DeviceMemoryError(
                f"{self._name} has no room for {size_text(nbytes)} more: {size_text(self.used)} of its limit of "
                f"{size_text(self.limit)} are in use{taken}. Place less on it, or raise its limit"
            )

    def hold(self, tensor: torch.Tensor) -> None:
        self._held[id(tensor)] = tensor
        address = tensor.untyped_storage().data_ptr()
        self._storages[address] = self._storages.get(address, 0) + 1
        self.used += tensor.nbytes

    def release(self, tensor: torch.Tensor) -> None:
        """Raises ValueError for what is not held."""
        if self._held.pop(id(tensor), None) is None:
            raise ValueError(f"{self._name} did not give out this tensor of {tuple(tensor.shape)}, or has it back")
        address = tensor.untyped_storage().data_ptr()
        self._storages[address] -= 1
        if not self._storages[address]:
            del self._storages[address]
        self.used -= tensor.nbytes

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it is such a tensor, or a view of one."""
        return tensor.untyped_storage().data_ptr() in self._storages


def bytes_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = 1
    for size in shape:
        count *= size
    return count * dtype.itemsize


def same_bytes(target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of a copy as uint8 [nbytes]. Raises ValueError unless they are contiguous and of one size."""
    for tensor in (target, source):
        if not tensor.is_contiguous():
            raise ValueError(f"the ends of a copy must be contiguous, and one of {tuple(tensor.shape)} is not")
    if target.nbytes != source.nbytes:
        raise ValueError(f"{source.nbytes} bytes cannot be copied to a place of {target.nbytes}")
    return target.reshape(-1).view(torch.uint8), source.reshape(-1).view(torch.uint8)
