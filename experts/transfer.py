"""Transfer: packed weights from RAM to an accelerator, through pinned buffers that take turns."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..gpu_kernels.device import Accelerator, Event
from .pack import PackedMatrix, PackedWeights

STAGE = 1 << 22  # bytes of a buffer: some time of the link, so that starting a copy counts little

Bytes = NDArray[np.uint8]


def places_of(weights: PackedWeights, matrix: PackedMatrix) -> Iterator[tuple[int, int]]:
    """Where a packed matrix lies in the arena, tile after tile, at each memory node in turn: first byte and size."""
    for shard in matrix.shards:
        yield shard.address - weights.arena.ctypes.data, shard.tiles * matrix.tile_bytes


def runs_of(weights: PackedWeights, matrix: PackedMatrix) -> Iterator[Bytes]:
    """The bytes of a packed matrix, as `places_of` has them."""
    for start, nbytes in places_of(weights, matrix):
        yield weights.arena[start : start + nbytes]


class Transfer:
    """To one accelerator, in order. The host fills one buffer while the link empties the other."""

    def __init__(self, accelerator: Accelerator, stage: int = STAGE) -> None:
        self._accelerator = accelerator
        self._buffers = [accelerator.pinned((stage,), torch.uint8) for _ in range(2)]
        self._emptied: list[Event | None] = [None, None]
        self._turn = 0

    def send(self, target: torch.Tensor, source: Bytes) -> None:
        """Queue a copy of bytes to uint8 memory of the device. The source may change or go when this returns."""
        flat = target.view(-1)
        for first in range(0, source.nbytes, self._buffers[0].numel()):
            part = source[first : first + self._buffers[0].numel()]
            buffer = self._next()[: part.nbytes]
            buffer.numpy()[:] = part
            self._accelerator.copy(flat[first : first + part.nbytes], buffer, "to")
            self._emptied[self._turn] = self._accelerator.record("to")

    def send_matrix(self, target: torch.Tensor, weights: PackedWeights, matrix: PackedMatrix) -> None:
        """Queue a copy of a packed matrix, as `send`."""
        flat, done = target.view(-1), 0
        for run in runs_of(weights, matrix):
            self.send(flat[done : done + run.nbytes], run)
            done += run.nbytes

    def _next(self) -> torch.Tensor:
        self._turn = 1 - self._turn
        event = self._emptied[self._turn]
        if event is not None:
            self._accelerator.synchronise(event)
        return self._buffers[self._turn]
