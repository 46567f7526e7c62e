"""Staging: room on an accelerator for experts of any layer that are there for one chunk of a prompt only.

They come in groups, to two halves by turns: while one is computed the other is filled. The link reads the weights where
they lie in RAM, so the host is free meanwhile.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from ..cpu_kernels.layout import KINDS, packed_shape
from ..gpu_kernels.device import Accelerator, DeviceError, Event
from ..gpu_kernels.tensors import SENTINEL, Matrix
from ..placement.streaming import GROUP
from .bank import parts_of
from .device_memory import DeviceMemory
from .pack import PackedWeights
from .transfer import places_of

Matrices = tuple[Matrix, Matrix, Matrix]
Group = Sequence[int]  # experts, at most GROUP


class Staging:
    """layers: whose experts may come. Raises DeviceFullError where there is no room, DeviceError where the link cannot
    read the weights by itself."""

    def __init__(
        self, accelerator: Accelerator, weights: PackedWeights, layers: Sequence[int], num_experts: int
    ) -> None:
        self._accelerator, self._weights = accelerator, weights
        self._ram = _tensor_of(weights)
        self._memory = DeviceMemory(accelerator, "staging of streamed experts")
        groups = -(-num_experts // GROUP)
        sizes = np.max([[part.nbytes for part in parts_of(weights, layer)] for layer in layers], axis=0)
        self._halves = [[self._memory.empty((GROUP * int(n),), torch.uint8) for n in sizes] for _ in range(2)]
        self._tables = self._memory.empty((groups, num_experts), torch.int32)
        self._told = accelerator.pinned((groups, num_experts), torch.int32)
        self._copied: Event | None = None
        self._left: list[Event | None] = [None, None]
        self._turn = 0
        if not accelerator.lock(self._ram):
            self._memory.release()
            raise DeviceError(f"{accelerator.name} cannot read the weights in RAM by itself")

    def announce(self, groups: Sequence[Group]) -> list[torch.Tensor]:
        """The tables of slots of a layer's groups, int32 [num_experts] each, which kernels wait for."""
        if self._copied is not None:
            self._accelerator.synchronise(self._copied)
        self._told[: len(groups)] = SENTINEL
        for table, group in zip(self._told, groups, strict=False):
            table[list(group)] = torch.arange(len(group), dtype=torch.int32)
        for left in self._left:  # nothing still reads those of another layer
            if left is not None:
                self._accelerator.wait("to", left)
        self._accelerator.copy(self._tables[: len(groups)], self._told[: len(groups)], "to")
        self._copied = self._accelerator.record("to")
        self._accelerator.wait("compute", self._copied)
        return list(self._tables[: len(groups)])

    def bring(self, layer: int, group: Group) -> Matrices:
        """Queue a group's way to the half whose turn it is; kernels wait for it."""
        self._turn = 1 - self._turn
        left = self._left[self._turn]
        if left is not None:
            self._accelerator.wait("to", left)
        matrices = []
        for number, part in enumerate(parts_of(self._weights, layer)):
            flat = self._halves[self._turn][number]
            for slot, expert in enumerate(group):
                done = slot * part.nbytes
                for start, nbytes in places_of(self._weights, parts_of(self._weights, layer, expert)[number]):
                    self._accelerator.copy(flat[done : done + nbytes], self._ram[start : start + nbytes], "to")
                    done += nbytes
            tiles = flat[: GROUP * part.nbytes].view(GROUP, *packed_shape(part.kind, part.rows, part.columns))
            matrices.append(Matrix(part.kind, KINDS[part.kind], part.rows, part.columns, tiles))
        self._accelerator.wait("compute", self._accelerator.record("to"))
        gate, up, down = matrices
        return gate, up, down

    def leave(self) -> None:
        """What was queued so far is all that reads the group that came last."""
        self._left[self._turn] = self._accelerator.record("compute")

    def close(self) -> None:
        self._accelerator.unlock(self._ram)
        self._memory.release()


def groups_of(experts: Sequence[int]) -> list[Group]:
    return [experts[first : first + GROUP] for first in range(0, len(experts), GROUP)]


def _tensor_of(weights: PackedWeights) -> torch.Tensor:
    """The weights in RAM, which may be mapped for reading: torch has no such tensors, and nothing writes to this."""
    address, nbytes = weights.arena.ctypes.data, weights.arena.nbytes
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.from_numpy(np.ctypeslib.as_array(memory))
