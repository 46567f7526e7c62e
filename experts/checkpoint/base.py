"""What every checkpoint reader gives: named raw tensors on an mmap, and the metadata beside them."""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened checkpoint. `metadata` is config.json's content or the GGUF key-values (arrays as lists)."""

    path: Path
    source: Literal["gguf", "safetensors"]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, RawTensor]
    fingerprint: str  # sha256 over names, shapes, formats, file sizes and samples of the data; stable across paths
