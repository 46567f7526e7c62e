"""The GGUF header: key-values and tensor records, read strictly. Nothing in the file is trusted before it is checked.

Layout, little-endian: "GGUF", u32 version, u64 tensors, u64 key-values; then the key-values (string key, u32 type,
value); then the tensor records (string name, u32 dimensions, u64 per dimension with the fastest first, u32 format, u64
offset from the data section). A string is a u64 length and UTF-8 bytes; an array is a u32 type, a u64 count and its
elements.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, UnsupportedModelError
from .mapping import REMEDY

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 3 only added big-endian files, which are refused
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ARRAY = 1 << 24
MAX_STRING = 1 << 24
MAX_DIMENSIONS = 4
STRING, ARRAY = 8, 9
SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor's record. shape: slowest axis first. offset: bytes from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    format_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the data section; `end` is the header's length in bytes."""

    metadata: dict[str, Any]
    tensors: list[TensorRecord]
    end: int


class _Cursor:
    """Reads values one after the other and never past the end of the file."""

    def __init__(self, file: Path, data: NDArray[np.uint8]) -> None:
        self.file = file
        self.data = data.data
        self.position = 0
        self.where = "the header"

    def fail(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {self.where} {problem}; {REMEDY}")

    def take(self, size: int) -> int:
        """The position of the next `size` bytes, which are then behind the cursor."""
        if size > len(self.data) - self.position:
            raise self.fail("runs past the end of the file (truncated, or a corrupt size)")
        start = self.position
        self.position += size
        return start

    def u32(self) -> int:
        return int(struct.unpack_from("<I", self.data, self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack_from("<Q", self.data, self.take(8))[0])

    def count(self, what: str, limit: int) -> int:
        value = self.u64()
        if value > limit:
            raise self.fail(f"claims {value} {what}, more than the limit of {limit}")
        return value

    def string(self) -> str:
        size = self.count("bytes in a string", MAX_STRING)
        start = self.take(size)
        # Some real vocabularies hold tokens that are no valid UTF-8 on their own.
        return str(self.data[start : start + size], "utf-8", "surrogateescape")

    def strings(self, count: int) -> list[str]:
        """So many strings. A vocabulary has a hundred thousand, so only what is odd takes the slow way."""
        data, length, size_at, values = self.data, len(self.data), struct.Struct("<Q").unpack_from, []
        at = self.position
        for _ in range(count):
            size = size_at(data, at)[0] if at + 8 <= length else length
            start, at = at + 8, at + 8 + size
            if at > length or size > MAX_STRING:
                self.position = start - 8
                self.string()  # says what is wrong
            values.append(str(data[start:at], "utf-8", "surrogateescape"))
        self.position = at
        return values

    def scalars(self, kind: int, count: int) -> list[Any]:
        dtype = np.dtype(SCALARS[kind])
        start = self.take(count * dtype.itemsize)
        values: list[Any] = np.frombuffer(self.data, dtype, count, start).tolist()
        return values

    def value(self) -> Any:
        kind = self.u32()
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind = self.u32()
            count = self.count("elements in an array", MAX_ARRAY)
            if kind == STRING:
                return self.strings(count)
            self._check_kind(kind)
            return self.scalars(kind, count)
        self._check_kind(kind)
        return self.scalars(kind, 1)[0]

    def _check_kind(self, kind: int) -> None:
        if kind not in SCALARS:
            raise self.fail(f"has the unknown value type {kind}")


def read_header(file: Path, data: NDArray[np.uint8]) -> Header:
    """Parse and check the header of a mapped GGUF file.

    Raises CheckpointError where it is broken, UnsupportedModelError for another version or byte order.
    """
    cursor = _Cursor(file, data)
    if bytes(data[:4]) != MAGIC:
        raise CheckpointError(
            f"{file}: not a GGUF file (it starts with the bytes {bytes(data[:4]).hex(' ')}); {REMEDY}"
        )
    cursor.take(4)
    _check_version(file, cursor.u32())
    num_tensors = cursor.count("tensors", MAX_TENSORS)
    num_keys = cursor.count("keys", MAX_KEYS)
    metadata = _read_metadata(cursor, num_keys)
    tensors = [_read_tensor(cursor, index) for index in range(num_tensors)]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise CheckpointError(f"{file}: two tensors have the same name; {REMEDY}")
    return Header(metadata, tensors, cursor.position)


def _check_version(file: Path, version: int) -> None:
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModelError(f"{file}: a big-endian GGUF file; convert it to little-endian")
    if version not in VERSIONS:
        raise UnsupportedModelError(f"{file}: GGUF version {version} is not read, only 2 and 3; convert the model anew")


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_keys):
        cursor.where = f"key {index + 1} of {num_keys}"
        key = cursor.string()
        cursor.where = f"key {key!r}"
        if key in metadata:
            raise cursor.fail("appears twice")
        metadata[key] = cursor.value()
    return metadata


def _read_tensor(cursor: _Cursor, index: int) -> TensorRecord:
    cursor.where = f"the record of tensor {index + 1}"
    name = cursor.string()
    cursor.where = f"the record of tensor {name!r}"
    rank = cursor.u32()
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise cursor.fail(f"has {rank} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64() for _ in range(rank))[::-1]
    if min(shape) < 1:
        raise cursor.fail(f"has the impossible shape {shape}")
    return TensorRecord(name, shape, cursor.u32(), cursor.u64())
