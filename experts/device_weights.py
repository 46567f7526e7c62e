"""DeviceWeights: matrices and vectors of dense parts in the memory of an accelerator."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from ..cpu_kernels.layout import KINDS, packed_shape
from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.tensors import Matrix
from .device_memory import DeviceMemory
from .pack import PackedWeights
from .transfer import Transfer


def roles_of(weights: PackedWeights, layers: Iterable[int]) -> list[str]:
    """Those of the dense parts of layers: all but banks of experts."""
    prefixes = tuple(f"layers.{layer}." for layer in layers)
    return [role for role in (*weights.matrices, *weights.vectors) if role.startswith(prefixes)]


class DeviceWeights:
    """roles: of what lies there. Takes the memory at once, raising DeviceFullError; `load` fills it."""

    def __init__(self, accelerator: Accelerator, weights: PackedWeights, roles: Iterable[str]) -> None:
        self._accelerator, self._weights = accelerator, weights
        self._memory = DeviceMemory(accelerator, "weights of dense layers")
        self._matrices: dict[str, Matrix] = {}
        self._vectors: dict[str, torch.Tensor] = {}
        by_address: dict[int, Matrix] = {}  # the head may be the embedding
        for role in roles:
            packed = weights.matrices.get(role)
            if packed is None:
                self._vectors[role] = self._memory.empty((weights.vectors[role].size,), torch.float32)
                continue
            if packed.address not in by_address:
                tiles = self._memory.empty(packed_shape(packed.kind, packed.rows, packed.columns), torch.uint8)
                kind = KINDS[packed.kind]
                by_address[packed.address] = Matrix(packed.kind, kind, packed.rows, packed.columns, tiles)
            self._matrices[role] = by_address[packed.address]

    def load(self) -> None:
        """Bring everything there, and wait for it. Raises DeviceError."""
        transfer = Transfer(self._accelerator)
        roles = {id(matrix): role for role, matrix in self._matrices.items()}  # one of each matrix
        for role in roles.values():
            transfer.send_matrix(self._matrices[role].tiles, self._weights, self._weights.matrices[role])
        for role, vector in self._vectors.items():
            transfer.send(vector.view(torch.uint8), self._weights.vectors[role].view(np.uint8))
        self._accelerator.synchronise(self._accelerator.record("to"))

    def matrix(self, role: str) -> Matrix:
        return self._matrices[role]

    def bank(self, role: str) -> Matrix:
        """A matrix as the only expert of a bank."""
        matrix = self._matrices[role]
        return replace(matrix, tiles=matrix.tiles.unsqueeze(0))

    def vector(self, role: str, size: int) -> torch.Tensor:
        """Without what pads it."""
        return self._vectors[role][:size]

    def has(self, role: str) -> bool:
        return role in self._vectors

    def close(self) -> None:
        self._memory.release()
