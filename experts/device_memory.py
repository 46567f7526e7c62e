"""DeviceMemory: what one user takes of an accelerator's memory, given back together."""

from collections.abc import Sequence

import torch

from ..gpu_kernels.device import Accelerator, DeviceMemoryError
from .errors import DeviceFullError


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

    def release(self) -> None:
        """Nothing may be queued on it."""
        for tensor in self._taken:
            self._accelerator.release(tensor)
        self._taken.clear()
