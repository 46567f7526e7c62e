"""Scales and minima from a checkpoint's blocks into the heads of packed spans.

`raw` and `out` are those of `packing`. `columns` is how many share a scale, 32 or 16, and `at` where in a span the 16
bits of each row and group of columns begin.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from .jit import kernel
from .memory import read_i64, read_u8, read_u16, write_u16
from .packing import Bytes, Table
from .simd import Emit, Value, i32, micro_kernel


@micro_kernel(types.float32)
def _read_half(e: Emit, address: Value) -> Value:
    """The float16 at an address."""
    return e.load_one_half(e.pointer(address))


@micro_kernel(types.uint16)
def _half_bits(e: Emit, value: Value) -> Value:
    """The bits of the float16 nearest to a float32."""
    one = e.half_bits(e.splat(value, 1))
    return e.b.extract_element(one, ir.Constant(i32, 0))


@kernel
def pack_halves(raw: Bytes, block_bytes: int, half_at: int, repeated: int, at: int, out: Bytes) -> None:
    """A float16 of each block, for `repeated` groups of 32 columns."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 2 + at
        for block in range(raw.shape[1] // block_bytes):
            half = read_u16(base + row * raw.strides[0] + block * block_bytes + half_at)
            for group in range(block * repeated, (block + 1) * repeated):
                write_u16(lane + group // 2 * out.strides[1] + group % 2 * 32, half)


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
def _part(source: int, row: int) -> Any:
    """A small integer of a block by a row of a table of parts."""
    part = (np.int64(read_u8(source + read_i64(row))) >> read_i64(row + 8)) & read_i64(row + 16)
    mask = read_i64(row + 40)
    if mask:
        part |= (np.int64(read_u8(source + read_i64(row + 24))) >> read_i64(row + 32) & mask) << 4
    return np.int64(np.int8(part)) - read_i64(row + 48)


@kernel
def pack_products(
    raw: Bytes, parts: Table, block_bytes: int, half_at: int, factor: float, columns: int, at: int, out: Bytes
) -> None:
    """A float16 of each block times `factor` (1 or -1) and times small integers of it, rounded to float16.

    parts [scales of a block, 7]: the byte, shift and mask of an integer's lowest bits, those of what lies 4 bits above,
    and what is taken off. It is read as a signed byte before that.
    """
    base, target, first_part = raw.ctypes.data, out.ctypes.data, parts.ctypes.data
    last = 64 // columns * 32
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 2 + at
        place = 0
        for block in range(raw.shape[1] // block_bytes):
            source = base + row * raw.strides[0] + block * block_bytes
            scale = _read_half(source + half_at) * np.float32(factor)
            for i in range(len(parts)):
                write_u16(lane + place, _half_bits(scale * np.float32(_part(source, first_part + 56 * i))))
                place += 32
                if place == last:
                    lane, place = lane + out.strides[1], 0
