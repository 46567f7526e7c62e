"""Streaming: experts that stay in RAM are brought to an accelerator for one step, where many tokens go to them.

Two banks take turns: while one is computed with, the other is filled. The hottest come first; experts that few tokens
go to are left to the CPU.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.layout import KINDS, packed_shape
from ..gpu_kernels.device import Accelerator, Event
from ..gpu_kernels.tensors import SENTINEL, Matrix
from .bank import Bank, parts_of
from .device_memory import DeviceMemory
from .pack import PackedWeights
from .transfer import Transfer, runs_of

Indices = NDArray[np.int64]


@dataclass(slots=True)
class _Half:
    """memory: uint8, which `bank` lays out for a layer. used: when what was last computed with it is over."""

    memory: torch.Tensor
    bank: Bank
    used: Event | None = None


class Streaming:
    """To one accelerator. above: by layer, the tokens of a step above which it pays; slots: experts of each bank.

    Takes its memory at once, raising DeviceFullError.
    """

    def __init__(self, accelerator: Accelerator, weights: PackedWeights, above: Mapping[int, int], slots: int) -> None:
        self._accelerator, self._weights, self._above, self._slots = accelerator, weights, above, slots
        self._memory = DeviceMemory(accelerator, "staging of experts")
        expert_bytes = max(sum(part.nbytes for part in parts_of(weights, layer)) for layer in above)
        sizes = {layer: len(weights.banks[f"layers.{layer}.experts.gate"]) for layer in above}
        self._num_experts = max(sizes.values())
        self._halves = [self._half(slots * expert_bytes, next(iter(above))) for _ in range(2)]
        self._transfer = Transfer(accelerator)

    def _half(self, nbytes: int, layer: int) -> _Half:
        memory = self._memory.empty((nbytes,), torch.uint8)
        table = self._memory.empty((self._num_experts,), torch.int32)
        told = self._accelerator.pinned((self._num_experts,), torch.int32)
        bank = Bank(self._accelerator, self._matrices(memory, layer), table, [SENTINEL] * self._slots, told)
        return _Half(memory, bank)

    @property
    def least(self) -> int:
        """Tokens of the smallest step in which it may pay."""
        return min(self._above.values()) + 1

    def covers(self, layer: int) -> bool:
        """Whether the layer's experts may be streamed."""
        return layer in self._above

    def chosen(self, layer: int, tokens: int, ids: Indices) -> list[int]:
        """Of the experts that pairs go to, `ids`, those to be streamed in a step of so many tokens, hottest first: all
        with as many tokens as an expert has, on average, where streaming begins to pay."""
        above = self._above.get(layer)
        if above is None or tokens <= above or not len(ids):
            return []
        counts = np.bincount(ids, minlength=self._num_experts)
        top_k = len(ids) / tokens
        least = max(above * top_k / np.count_nonzero(counts), 1.0)
        order = np.argsort(-counts, kind="stable")
        return [int(expert) for expert in order if counts[expert] >= least]

    def groups(self, experts: Sequence[int]) -> list[Sequence[int]]:
        """Those that share a bank."""
        return [experts[first : first + self._slots] for first in range(0, len(experts), self._slots)]

    def banks(self, layer: int, experts: Sequence[int]) -> Iterator[Bank]:
        """A bank with some of the experts after the other; what is queued before the next is taken computes with it."""
        for number, group in enumerate(self.groups(experts)):
            half = self._halves[number % 2]
            if half.used is not None:
                self._accelerator.wait("to", half.used)
            self._fill(half, layer, group)
            yield half.bank
            half.used = self._accelerator.record("compute")

    def _fill(self, half: _Half, layer: int, experts: Sequence[int]) -> None:
        half.bank.matrices = self._matrices(half.memory, layer)
        for slot, expert in enumerate(experts):
            for matrix, packed in zip(half.bank.matrices, parts_of(self._weights, layer, expert), strict=True):
                flat, done = matrix.tiles[slot].view(-1), 0
                for run in runs_of(self._weights, packed):
                    self._transfer.send(flat[done : done + run.nbytes], run)
                    done += run.nbytes
        half.bank.experts = [*experts, *[SENTINEL] * (self._slots - len(experts))]
        half.bank.tell()

    def _matrices(self, memory: torch.Tensor, layer: int) -> tuple[Matrix, Matrix, Matrix]:
        """A layer's gate, up and down in such memory."""
        made, first = [], 0
        for part in parts_of(self._weights, layer):
            shape = (self._slots, *packed_shape(part.kind, part.rows, part.columns))
            last = first + self._slots * part.nbytes
            tiles = memory[first:last].view(shape)
            made.append(Matrix(part.kind, KINDS[part.kind], part.rows, part.columns, tiles))
            first = last
        return made[0], made[1], made[2]

    def close(self) -> None:
        self._memory.release()
