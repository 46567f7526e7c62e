"""Matrices of 4- or 8-bit integers, whose scales and zero points each serve a group of columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cpu_kernels.layout import GROUP
from ..architectures.base import MAX_WIDTH
from ..checkpoint import JoinedTensor, Plane, RawTensor
from ..errors import UnsupportedModelError
from ..fields import Fields
from ..scaled_blocks import INTEGERS, Bytes, Integers
from .parts import Parts, values_of

SCALES = ("F16", "BF16")
WORD = 32  # bits


@dataclass(frozen=True, slots=True)
class Grouping:
    """What a config says: bits of a code, columns of a group (as many as there are, where it is 0), zero points."""

    bits: int
    size: int
    zeros: bool

    @property
    def in_word(self) -> int:
        """Codes in a word of 32 bits."""
        return WORD // self.bits

    def columns(self, width: int) -> int:
        """Columns of a group in rows of `width`."""
        return min(self.size or width, width)

    def count(self, width: int) -> int:
        """Groups in rows of `width`; the last may be cut short."""
        return -(-width // self.columns(width))

    def word_places(self, order: Sequence[int] = ()) -> tuple[int, ...]:
        """Where in a word each code begins; `order`: the places by code, if they are not as they come."""
        return tuple(self.bits * place for place in order or range(self.in_word))


def group_size(config: Fields, key: str = "group_size", default: int | None = None) -> int:
    """Columns of a group, 0 for a whole row. UnsupportedModelError where a group of 32 would have several scales."""
    if config.get(key) == -1:
        return 0
    size = config.integer(key, 1, MAX_WIDTH, default)
    if size % GROUP:
        raise config.unsupported(key, f"is {size}; only multiples of {GROUP} are supported, use the original model")
    return size


@dataclass(frozen=True, slots=True)
class _Join:
    """Blocks of some rows from their codes, scales and zero points."""

    parts: Parts
    grouping: Grouping
    blocks: Integers
    width: int
    symmetric: bool
    more: int  # what zero points lack
    order: NDArray[Any] | None

    def __call__(self, codes: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any] | None = None) -> Bytes:
        check_order(self.parts, self.grouping, self.order)
        group = np.arange(0, self.width, GROUP) // self.grouping.columns(self.width)
        scales = scales[:, group].view(np.uint16)
        if zeros is not None:
            zeros = zeros[:, group] + np.uint32(self.more)
            if self.symmetric and (zeros != self.blocks.middle).any():
                raise self.parts.broken(
                    f"is symmetric by its config, but has zero points other than {self.blocks.middle}"
                )
        return self.blocks.blocks(self._bytes(codes), scales, None if self.symmetric else zeros)

    def _bytes(self, codes: NDArray[Any]) -> Bytes:
        """Codes one a byte, [rows, columns]; words that hold several columns come as they are in the file."""
        if codes.shape[1] == self.width:
            signed = self.parts.codes.format == "I8"
            return codes.astype(np.uint8) ^ np.uint8(128 if signed else 0)
        data = np.ascontiguousarray(codes).view(np.uint8)
        return data if self.blocks.bits == 8 else np.stack((data & 15, data >> 4), -1).reshape(len(data), -1)


def join_integers(
    name: str,
    parts: Parts,
    shape: tuple[int, int],
    grouping: Grouping,
    planes: tuple[Plane, ...],
    scales: RawTensor,
    *,
    more: int = 0,
    order: RawTensor | None = None,
) -> JoinedTensor:
    """The matrix `name` [rows, columns] from planes of codes, scales and, if there are any, zero points.

    more: to be added to the zero points; order: the group of each column, which must be in the order of the columns.
    Raises UnsupportedModelError where no packed kind can hold it.
    """
    rows, width = shape
    if width % GROUP:
        raise parts.unsupported(f"has rows of {width} columns, not whole groups of {GROUP}")
    if grouping.zeros and grouping.bits == 8:
        raise parts.unsupported("has 8 bits and zero points")
    blocks = f"INT{grouping.bits}{'_ZP' if grouping.zeros else ''}{'_BF16' if scales.format == 'BF16' else ''}"
    groups = None if order is None else values_of(order)
    join = _Join(parts, grouping, INTEGERS[blocks], width, not grouping.zeros, more, groups)
    return JoinedTensor(name, parts.codes.file, shape, blocks, planes, join, rows)


def check_order(parts: Parts, grouping: Grouping, order: NDArray[Any] | None) -> None:
    """UnsupportedModelError where columns are not grouped as they come."""
    if order is None or np.array_equal(order, np.arange(order.size) // grouping.columns(order.size)):
        return
    raise UnsupportedModelError(
        f"{parts.codes.file}: tensor {parts.codes.name!r} was quantised with its columns in another order (desc_act, "
        "actorder), which is not supported; use a model quantised with desc_act false, or a GGUF of it"
    )
