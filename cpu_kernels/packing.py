"""Filling packed tiles from a checkpoint's blocks: the permutation of `layout`, once per matrix at load.

`out` is uint8 [tiles, spans, span_bytes] of zeros; rows and columns that the source lacks stay zero, and a zero scale
silences whatever codes stand there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import kernel
from .layout import GROUP, ROWS, SPAN, Codes
from .memory import read_u32, read_u64, write_u32

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16] | NDArray[np.uint16]
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)
_WORD = np.uint64(0xFFFFFFFF)


@kernel
def _pair_of(eight: Any) -> Any:
    """Eight 4-bit codes in the bytes of a uint64: the first four in the low nibbles of a dword, the others high."""
    return np.uint32((eight & _WORD) | (eight >> np.uint64(28)))


@kernel
def pack_bytes(raw: Bytes, groups: int, block_bytes: int, codes_at: int, flip: Any, header: int, out: Bytes) -> None:
    """Groups of 32 one-byte codes, one group a block of `block_bytes`; each dword is XORed with `flip`."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 4
        for group in range(groups):
            source = base + row * raw.strides[0] + group * block_bytes + codes_at
            at = lane + group // 2 * out.strides[1] + header + group % 2 * 512
            for vector in range(8):
                write_u32(at + 64 * vector, read_u32(source + 4 * vector) ^ flip)


@kernel
def pack_split_nibbles(raw: Bytes, groups: int, block_bytes: int, codes_at: int, header: int, out: Bytes) -> None:
    """Groups of 32 in 16 bytes: elements 0-15 in the low nibbles, 16-31 in the high ones."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 4
        for group in range(groups):
            source = base + row * raw.strides[0] + group * block_bytes + codes_at
            at = lane + group // 2 * out.strides[1] + header + group % 2 * 256
            for part in range(2):
                eight = read_u64(source + 8 * part)
                write_u32(at + 64 * part, _pair_of(eight & _LOW))
                write_u32(at + 64 * (part + 2), _pair_of((eight >> np.uint64(4)) & _LOW))


@kernel
def pack_paired_nibbles(raw: Bytes, groups: int, block_bytes: int, codes_at: int, header: int, out: Bytes) -> None:
    """Blocks of 8 groups; two groups share 32 bytes, the even one in the low nibbles."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 4
        for group in range(groups):
            source = base + row * raw.strides[0] + group // 8 * block_bytes + codes_at + group % 8 // 2 * 32
            at = lane + group // 2 * out.strides[1] + header + group % 2 * 256
            shift = np.uint64(4 * (group % 2))
            for part in range(4):
                write_u32(at + 64 * part, _pair_of((read_u64(source + 8 * part) >> shift) & _LOW))


@kernel
def _pack_plane(codes: Bytes, position: int, bits: int, at: int, out: Bytes) -> None:
    """Add `bits` bits from `position` of every code to the plane at byte `at` of the spans."""
    base, target = codes.ctypes.data, out.ctypes.data
    mask, shared = np.uint32((2**bits - 1) * 0x01010101), 8 // bits
    for row in range(codes.shape[0]):
        source, lane = base + row * codes.strides[0], target + row // 16 * out.strides[0] + row % 16 * 4 + at
        for block in range(codes.shape[1] // 4):
            to = lane + block // 16 * out.strides[1] + block // 8 % 2 * 64 * bits + block % 8 // shared * 64
            four = (read_u32(source + 4 * block) >> np.uint32(position)) & mask
            write_u32(to, read_u32(to) | (four << np.uint32(bits * (block % shared))))


def pack_codes(values: Bytes, codes: Codes, out: Bytes) -> None:
    """Codes one a byte, [rows, columns] with whole groups of columns, into zeroed planes."""
    _pack_plane(values, 0, codes.low, codes.low_at, out)
    if codes.high:
        _pack_plane(values, codes.low, codes.high, codes.high_at, out)


@kernel
def _transpose(values: Any, out: Bytes) -> None:
    """values [rows, columns] to out [tiles, spans * 64 * 16]: column by column, 16 rows each."""
    for row in range(values.shape[0]):
        tile = out[row // 16]
        lane = row % 16
        for column in range(values.shape[1]):
            tile[16 * column + lane] = values[row, column]


def pack_floats(values: NDArray[np.generic], out: Bytes) -> None:
    """Pack floats given by their bits, uint16 or uint32 [rows, columns]."""
    _transpose(values, out.reshape(out.shape[0], -1).view(values.dtype))


def pack_pairs(values: NDArray[np.uint16], out: Bytes) -> None:
    """Pack 16-bit floats given by their bits, [rows, columns], two columns side by side."""
    if values.shape[1] % 2:
        values = np.pad(values, ((0, 0), (0, 1)))
    pack_floats(np.ascontiguousarray(values).view(np.uint32), out)


@kernel
def _pack_eights(raw: Any, out: Any) -> None:
    for row in range(raw.shape[0]):
        lane = row % 16
        for span in range(raw.shape[1]):
            source, target = raw[row, span], out[row // 16, span]
            target[2 * lane], target[2 * lane + 1] = source[0], source[1]
            for pair in range(32):
                target[32 + 16 * pair + lane] = source[2 + pair]


def pack_eights(blocks: Bytes, out: Bytes) -> None:
    """Pack 8-bit floats, blocks [rows, blocks of 64 columns, 68]: a float32 scale, then the codes."""
    _pack_eights(blocks.view(np.uint16), out.view(np.uint16))


def pack_headers(values: Halves, at: int, out: Bytes, columns: int = GROUP) -> None:
    """Put 16 bits (float16, or bfloat16 as uint16) per row and `columns` columns at byte `at` of every span."""
    rows, count = values.shape
    tiles, spans = out.shape[:2]
    per_span = SPAN // columns
    padded = np.zeros((tiles * ROWS, spans * per_span), values.dtype)
    padded[:rows, :count] = values
    order = padded.reshape(tiles, ROWS, spans, per_span).transpose(0, 2, 3, 1)
    out[:, :, at : at + 32 * per_span] = np.ascontiguousarray(order).reshape(tiles, spans, -1).view(np.uint8)
