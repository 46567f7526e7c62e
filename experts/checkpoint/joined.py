"""A matrix that lies in the file as several tensors, codes and scales and zero points, joined as its rows are read."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import RawTensor

Indices = NDArray[np.int64]
Join = Callable[..., NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Plane:
    """One of the tensors: a view on the file, [..., rows / shared, columns].

    shared: rows of the matrix to an entry. They have it in common, or it packs `bits` bits for each of them, which
    begin at the bit that `shifts` says.
    """

    values: NDArray[Any]
    shared: int = 1
    shifts: tuple[int, ...] = ()
    bits: int = 0

    def at(self, rows: Indices) -> NDArray[Any]:
        """The entries of some rows, [rows, columns]."""
        entries: NDArray[Any] = self.values[rows // self.shared]
        if not self.shifts:
            return entries
        places = np.array(self.shifts, np.uint32)[rows % self.shared]
        return entries >> places[:, None] & np.uint32(2**self.bits - 1)


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """As a RawTensor, whose blocks `join` makes of the planes' entries for some rows.

    name: of the matrix, as if it were stored in floats; file: where its codes lie.
    stored_rows: of the whole matrix in the file, of which this may be a part that begins with row `first`.
    woven: the whole is this many stacks of rows, and the file takes a row of each in turn.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    format: str
    planes: tuple[Plane, ...]
    join: Join
    stored_rows: int
    first: int = 0
    woven: int = 1

    def rows(self, first: int, last: int) -> NDArray[np.uint8]:
        """Rows of a matrix in blocks of the format: contiguous uint8 [rows, bytes per row].

        Raises CheckpointError or UnsupportedModelError for values that no matrix can have, or that are not supported.
        """
        rows = self.first + np.arange(first, min(last, self.shape[-2]))
        stack = self.stored_rows // self.woven
        stored = rows % stack * self.woven + rows // stack
        return self.join(*(plane.at(stored) for plane in self.planes))

    def views(self, first: int, last: int) -> Iterable[NDArray[Any]]:
        """What of the file is done with when rows up to `last`, and before those up to `first`, have been read."""
        # Columns may lie side by side in the file, so that each row is all over it: wait for the last.
        return tuple(plane.values for plane in self.planes) if last >= self.shape[-2] else ()

    def expert(self, expert: int) -> "JoinedTensor":
        """One matrix of a bank."""
        planes = tuple(replace(plane, values=plane.values[expert]) for plane in self.planes)
        return replace(self, shape=self.shape[1:], planes=planes)

    def part(self, part: int, parts: int) -> "JoinedTensor":
        """Of rows that are `parts` equal stacks, one."""
        rows = self.shape[-2] // parts
        shape = (*self.shape[:-2], rows, self.shape[-1])
        return replace(self, shape=shape, first=self.first + part * rows)


Tensor = RawTensor | JoinedTensor
