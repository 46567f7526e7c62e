"""The values that kernels on accelerators take: packed weights and activations as torch tensors.

Weights lie as the CPU's do, byte for byte: tiles of 16 rows, along the input units of one or four spans of 64 columns
(`cpu_kernels.layout` says how). So an expert moves by plain copies, there is one layout to test, and a Triton program
that takes a tile's 16 rows reads lines of 64 bytes. What a kind looks like is passed in, since this room imports
nothing of ours: `KindLayout` and `CodeLayout` are what `cpu_kernels.layout.KINDS` holds.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

ROWS, SPAN = 16, 64  # rows of a tile; columns that a record shares a scale for
SENTINEL = -1  # in a table of slots: the expert is not here


class CodeLayout(Protocol):
    """How a kind stores integers; see `cpu_kernels.layout.Codes`."""

    @property
    def low(self) -> int: ...
    @property
    def high(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def minima(self) -> bool: ...
    @property
    def zeros(self) -> bool: ...
    @property
    def table(self) -> tuple[int, ...]: ...
    @property
    def bfloat(self) -> bool: ...
    @property
    def parts(self) -> str | None: ...
    @property
    def spans(self) -> int: ...
    @property
    def minima_at(self) -> int: ...
    @property
    def parts_at(self) -> int: ...
    @property
    def high_at(self) -> int: ...
    @property
    def low_at(self) -> int: ...
    @property
    def plane_bytes(self) -> int: ...
    @property
    def unit_bytes(self) -> int: ...


class KindLayout(Protocol):
    """A packed kind; see `cpu_kernels.layout.Kind`."""

    @property
    def unit_bytes(self) -> int: ...
    @property
    def record(self) -> str: ...
    @property
    def codes(self) -> CodeLayout | None: ...
    @property
    def spans(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """Packed weights [rows, columns]. tiles: uint8 [..., tiles, units, unit_bytes]; a bank has a leading dimension of
    slots, each of which holds one expert."""

    name: str  # of the kind
    kind: KindLayout
    rows: int
    columns: int
    tiles: torch.Tensor

    @property
    def spans(self) -> int:
        """Of 64 columns, the last padded."""
        return -(-self.columns // SPAN)


@dataclass(frozen=True, slots=True)
class Record:
    """Activations as kinds of weights read them, one row a token or pair; forms that no reader wants are None.

    plain: float32 [T, padded columns], which a kind with the record "bf16" rounds as it reads it; or bfloat16, if none
    wants more. codes: int8 [T, padded columns] with scales: float32 [T, spans of 64] ("q8"). Padding is zero.
    """

    plain: torch.Tensor | None = None
    codes: torch.Tensor | None = None
    scales: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Groups:
    """The pairs (token, choice) of a step that fall on experts which are here, by slot.

    order: int32 [padded]: pair numbers, those of a slot one after the other, each slot's run padded to whole blocks of
    `block` by numbers that no pair of the step has; runs lie in any order. slots: int32 [padded / block], the slot of
    each block, SENTINEL for blocks beyond the last. Sizes depend on the largest step alone (`most_blocks`), so a launch
    can be captured. top_k: choices of a token; pair p is one of token p // top_k.
    """

    order: torch.Tensor
    slots: torch.Tensor
    block: int
    top_k: int


def most_blocks(pairs: int, slots: int, block: int) -> int:
    """How many blocks `Groups` of so many pairs may need, however they fall on the slots."""
    begun = min(pairs, slots)
    return begun + (pairs - begun) // block
