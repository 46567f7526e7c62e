"""What every checkpoint reader gives: named raw tensors on an mmap, and the metadata beside them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it lies in the file.

    shape: logical, slowest axis first: (rows, columns), (experts, rows, columns) or (n,).
    format: a name of `experts.formats`, such as "Q4_0", "F32" or "BF16".
    data: uint8, shape (*shape[:-1], bytes per row), a read-only view on the mapped file; nothing is copied.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    format: str
    data: NDArray[np.uint8]

    def rows(self, first: int, last: int) -> NDArray[np.uint8]:
        """Rows of a matrix in blocks of the format: contiguous uint8 [rows, bytes per row]."""
        return np.ascontiguousarray(self.data[first:last])

    def views(self, first: int, last: int) -> Iterable[NDArray[Any]]:
        """What of the file is done with when rows up to `last`, and before those up to `first`, have been read."""
        return (self.data[first:last],)

    def expert(self, expert: int) -> "RawTensor":
        """One matrix of a bank."""
        return replace(self, shape=self.shape[1:], data=self.data[expert])

    def part(self, part: int, parts: int) -> "RawTensor":
        """Of rows that are `parts` equal stacks, one."""
        rows = self.shape[-2] // parts
        data = self.data[..., part * rows : (part + 1) * rows, :]
        return replace(self, shape=(*self.shape[:-2], rows, self.shape[-1]), data=data)


def blank_tensor(name: str, file: Path, shape: tuple[int, ...], form: str) -> RawTensor:
    """A tensor of which the data is not there: rows of no bytes."""
    return RawTensor(name, file, shape, form, np.zeros((*shape[:-1], 0), np.uint8))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint. `metadata` is config.json's content or the GGUF key-values (arrays as lists)."""

    path: Path
    source: Literal["gguf", "safetensors"]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, RawTensor]
    fingerprint: str  # sha256 over names, shapes, formats, file sizes and samples of the data; stable across paths
