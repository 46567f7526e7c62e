"""GGUF files byte by byte, so that tests can break each field."""

import struct
from collections.abc import Sequence
from typing import Any

SCALAR_CODES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
U32, STRING, ARRAY = 4, 8, 9


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: Any) -> bytes:
    """A key-value; an array's value is (element kind, list)."""
    return string(name) + struct.pack("<I", kind) + _value(kind, value)


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return string(value)
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack(SCALAR_CODES[kind], value)


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """A tensor record; shape slowest axis first."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)


def gguf_file(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A whole file; `counts` overrides the numbers of tensors and keys that its header claims."""
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    head = magic + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data
