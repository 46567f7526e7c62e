"""Files mapped for reading: the memory under every RawTensor, and how it is handed back to the system."""

import hashlib
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError
from .base import RawTensor

REMEDY = "download or convert it again"
SAMPLED_TENSORS = 4096  # fingerprint samples; each may cost one read from a cold disk
SAMPLE_BYTES = 64
FAULT_AROUND = 1 << 16  # bytes that the system maps around a page it was asked for


class MappedFile(mmap.mmap):
    """A whole file, mapped for reading, that knows what it was like."""

    path: Path
    stamp: tuple[int, int]  # the file itself, and when it was changed last, in ns


def map_file(path: Path) -> NDArray[np.uint8]:
    """The whole file as a read-only uint8 array on its mapping; CheckpointError for an empty file."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_size == 0:
            raise CheckpointError(f"{path}: the file is empty; {REMEDY}")
        mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.path, mapped.stamp = path, (found.st_ino, found.st_mtime_ns)
        return np.frombuffer(mapped, np.uint8)


def check_unchanged(*views: NDArray[Any]) -> None:
    """CheckpointError where a file under the views was cut or written to since it was mapped.

    To look at what was cut off ends the process, so ask before each longer read. A file that was replaced by another
    lives on under the mapping.
    """
    for view in views:
        mapping = mapping_under(view)
        if isinstance(mapping, MappedFile):
            _check_unchanged(mapping)


def _check_unchanged(mapping: MappedFile) -> None:
    if (left := mapping.size()) < len(mapping):
        raise CheckpointError(
            f"{mapping.path}: the file was cut to {left} of {len(mapping)} bytes while it was read; "
            "start again when it is whole"
        )
    try:
        now = os.stat(mapping.path)
    except FileNotFoundError:
        return
    if now.st_ino == mapping.stamp[0] and now.st_mtime_ns != mapping.stamp[1]:
        raise CheckpointError(f"{mapping.path}: the file was changed while it was read; start again")


def release(*views: NDArray[Any]) -> None:
    """Drop mapped pages under the views from the resident set; a later read brings them back from the file.

    Does nothing for an array that is a copy, and on systems without madvise.
    """
    for view in views:
        _release(view)


def _release(view: NDArray[Any]) -> None:
    mapping = mapping_under(view)
    if mapping is None or view.size == 0 or not hasattr(mmap, "MADV_DONTNEED"):
        return
    low, high = np.lib.array_utils.byte_bounds(view)
    start = low - np.frombuffer(mapping, np.uint8).ctypes.data
    first = max(start - FAULT_AROUND, 0)
    first -= first % mmap.PAGESIZE
    end = min(start + (high - low) + FAULT_AROUND, len(mapping))
    mapping.madvise(mmap.MADV_DONTNEED, first, end - first)


def mapping_under(data: NDArray[Any]) -> mmap.mmap | None:
    """The mapping that an array is a view of, if it is one."""
    base: object = data
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) else None


def check_disjoint(file: Path, spans: Iterable[tuple[int, int, str]]) -> None:
    """CheckpointError where two tensors' (begin, end, name) share bytes."""
    last_end, last_name = 0, ""
    for begin, end, name in sorted(spans):
        if begin < last_end:
            raise CheckpointError(f"{file}: tensors {last_name!r} and {name!r} overlap; {REMEDY}")
        last_end, last_name = max(end, last_end), name


def fingerprint(tensors: Sequence[RawTensor], file_sizes: Sequence[int]) -> str:
    """sha256 over names, shapes, formats, file sizes and evenly spread samples of the data; the same at any path."""
    digest = hashlib.sha256()
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    digest.update(repr(sorted(file_sizes)).encode())
    digest.update(repr([(tensor.name, tensor.shape, tensor.format) for tensor in ordered]).encode())
    for tensor in ordered[:: -(-len(ordered) // SAMPLED_TENSORS) or 1]:
        content = tensor.data.reshape(-1)
        digest.update(content[content.size // 2 :][:SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
