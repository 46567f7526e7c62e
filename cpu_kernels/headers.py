"""Scales and minima from a checkpoint's blocks into the heads of packed units.

`raw` and `out` are those of `packing`; `at` is where in a unit the field begins. A block that has parts (see `layout`)
is a unit.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import kernel
from .memory import read_i64, read_u8, read_u16, write_u8, write_u16
from .packing import Bytes, Table


@kernel
def pack_halves(
    raw: Bytes, block_bytes: int, half_at: int, flip: int, repeated: int, per_unit: int, at: int, out: Bytes
) -> None:
    """A float16 of each block, XORed with `flip`, `repeated` times; a unit has `per_unit` of them."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 2 + at
        for block in range(raw.shape[1] // block_bytes):
            half = read_u16(base + row * raw.strides[0] + block * block_bytes + half_at) ^ np.uint16(flip)
            for place in range(block * repeated, (block + 1) * repeated):
                write_u16(lane + place // per_unit * out.strides[1] + place % per_unit * 32, half)


@kernel
def pack_listed(raw: Bytes, listed: NDArray[np.uint16], block_bytes: int, count: int, at: int, out: Bytes) -> None:
    """What `listed` [256] has for each of the `count` bytes at the beginning of each block.

    A block of one has 32 columns, one of several 16 for each.
    """
    base, target = raw.ctypes.data, out.ctypes.data
    per_span = 2 if count == 1 else 4
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 2 + at
        for block in range(raw.shape[1] // block_bytes):
            source = base + row * raw.strides[0] + block * block_bytes
            for part in range(count):
                place = block * count + part
                to = lane + place // per_span * out.strides[1] + place % per_span * 32
                write_u16(to, listed[read_u8(source + part)])


@kernel
def pack_part_bytes(raw: Bytes, block_bytes: int, first: int, count: int, at: int, out: Bytes) -> None:
    """`count` bytes of each block, from byte `first` on."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 + at
        for block in range(raw.shape[1] // block_bytes):
            source = base + row * raw.strides[0] + block * block_bytes + first
            for i in range(count):
                write_u8(lane + block * out.strides[1] + 16 * i, read_u8(source + i))


@kernel
def _part(source: int, row: int) -> Any:
    """Six bits of a block by a row of a table of parts."""
    low = read_u8(source + read_i64(row)) >> read_i64(row + 8) & read_i64(row + 16)
    return low | (read_u8(source + read_i64(row + 24)) >> read_i64(row + 32) & read_i64(row + 40)) << 4


@kernel
def pack_sixes(raw: Bytes, parts: Table, block_bytes: int, at: int, out: Bytes) -> None:
    """The sixteen parts of 6 bits of each block, four for each span.

    parts [16, 6]: the byte, shift and mask of a part's lowest bits, and those of what lies 4 bits above.
    """
    base, target, first_part = raw.ctypes.data, out.ctypes.data, parts.ctypes.data
    for row in range(raw.shape[0]):
        tile, lane = target + row // 16 * out.strides[0] + at, row % 16
        for block in range(raw.shape[1] // block_bytes):
            source, to = base + row * raw.strides[0] + block * block_bytes, tile + block * out.strides[1]
            for span in range(4):
                four = first_part + 4 * 48 * span
                last = _part(source, four + 144)
                word = _part(source, four) | _part(source, four + 48) << 6 | (last & 15) << 12
                write_u16(to + 48 * span + 2 * lane, np.uint16(word))
                write_u8(to + 48 * span + 32 + lane, np.uint8(_part(source, four + 96) | last >> 4 << 6))
