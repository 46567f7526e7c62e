"""Filling packed tiles from a checkpoint's blocks: the permutation of `layout`, once per matrix at load.

`raw` is uint8 [rows, bytes per row] of whole blocks, `out` uint8 [tiles, units, unit_bytes] of zeros, both contiguous.
Rows and columns that the source lacks stay zero, and a zero scale silences whatever codes stand there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import kernel
from .layout import GROUP, ROWS, SPAN, Codes
from .memory import read_i64, read_u32, read_u64, write_u32

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16] | NDArray[np.uint16]
Table = NDArray[np.int64]
_WORD = np.uint64(0xFFFFFFFF)
_BYTES = np.uint64(0x0101010101010101)
_SPREAD = np.uint64(0x1111111111111111)
_EVEN = np.uint64(0x00FF00FF00FF00FF)


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
def _digits(source: int, octet: int, mask: Any) -> Any:
    """The bits of eight columns, one a byte, by a row of a table of octets."""
    return (read_u64(source + read_i64(octet)) >> np.uint64(read_i64(octet + 8))) & mask


@kernel
def pack_plane(
    raw: Bytes, octets: Table, block_bytes: int, bits: int, at: int, spans: int, span_bytes: int, out: Bytes
) -> None:
    """`bits` (1, 2 or 4) bits of every code, to the planes of the `spans` of a unit at byte `at`, each `span_bytes` on.

    octets [columns of a block / 8, 2]: where in a block lie the eight bytes that hold these bits of eight columns, and
    how far above the lowest place.
    """
    base, target, first_octet = raw.ctypes.data, out.ctypes.data, octets.ctypes.data
    mask, joined = np.uint64(2**bits - 1) * _BYTES, 4 // bits
    words, last = len(octets) // joined, 128 * bits
    for row in range(raw.shape[0]):
        unit = target + row // 16 * out.strides[0] + row % 16 * 4 + at
        lane, place, span = unit, 0, 0
        for block in range(raw.shape[1] // block_bytes):
            source, octet = base + row * raw.strides[0] + block * block_bytes, first_octet
            for _ in range(words):
                eight = _digits(source, octet, mask)
                octet += 16
                for part in range(1, joined):
                    eight |= _digits(source, octet, mask) << np.uint64(2 * bits * part)
                    octet += 16
                # The first four columns are in the low dword, the next four go to the bits above theirs.
                write_u32(lane + place, np.uint32((eight & _WORD) | (eight >> np.uint64(32 - bits))))
                place += 64
                if place == last:
                    lane, place, span = lane + span_bytes, 0, span + 1
                    if span == spans:
                        unit, span = unit + out.strides[1], 0
                        lane = unit


@kernel
def pack_bit_rows(raw: Bytes, block_bytes: int, bits_at: int, at: int, out: Bytes) -> None:
    """A plane of one bit from blocks of 32 columns whose bits lie in one dword, the first column's lowest."""
    base, target = raw.ctypes.data, out.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 4 + at
        for group in range(raw.shape[1] // block_bytes):
            dword = np.uint64(read_u32(base + row * raw.strides[0] + group * block_bytes + bits_at))
            word = np.uint32(0)
            for pair in range(2):  # bits 0, 4, 8 .. 28 belong to byte 0, bits 1, 5 .. to byte 1: two bytes at a time
                first = dword >> np.uint64(2 * pair)
                two = (first & _WORD | first >> np.uint64(1) << np.uint64(32)) & _SPREAD
                two = (two | two >> np.uint64(3)) & np.uint64(0x0303030303030303)
                two = (two | two >> np.uint64(6)) & np.uint64(0x000F000F000F000F)
                two = two | two >> np.uint64(12)
                two = (two & np.uint64(255)) | ((two >> np.uint64(24)) & np.uint64(0xFF00))
                word |= np.uint32(two << np.uint64(16 * pair))
            write_u32(lane + group // 2 * out.strides[1] + group % 2 * 64, word)


@kernel
def _trits(eight: Any, power: Any) -> Any:
    """Of eight bytes that hold digits to the base of 3 the digit that `power` of 3 brings to the front, one a byte."""
    even, odd = (eight & _EVEN) * power & _EVEN, (eight >> np.uint64(8) & _EVEN) * power & _EVEN
    return (even * np.uint64(3) >> np.uint64(8) & _EVEN) | (odd * np.uint64(3) & ~_EVEN)


@kernel
def _word_of(first: Any, second: Any) -> Any:
    """The dword of a plane of two bits that holds twice eight codes."""
    sixteen = first | second << np.uint64(4)
    return np.uint32((sixteen & _WORD) | (sixteen >> np.uint64(30)))


@kernel
def pack_trits(raw: Bytes, octets: Table, block_bytes: int, last_at: int, at: int, out: Bytes) -> None:
    """A plane of two bits from blocks whose bytes hold digits to the base of 3, as fractions of 256.

    octets: where eight bytes lie, and the power of 3 that brings a column's digit to the front. Four bytes at `last_at`
    hold the four digits of the last 16 columns.
    """
    base, target, first_octet = raw.ctypes.data, out.ctypes.data, octets.ctypes.data
    for row in range(raw.shape[0]):
        lane = target + row // 16 * out.strides[0] + row % 16 * 4 + at
        word = 0
        for block in range(raw.shape[1] // block_bytes):
            source = base + row * raw.strides[0] + block * block_bytes
            for octet in range(first_octet, first_octet + 16 * len(octets), 32):
                first = _trits(read_u64(source + read_i64(octet)), np.uint64(read_i64(octet + 8)))
                second = _trits(read_u64(source + read_i64(octet + 16)), np.uint64(read_i64(octet + 24)))
                write_u32(lane + (word >> 2) * out.strides[1] + (word & 3) * 64, _word_of(first, second))
                word += 1
            four = np.uint64(read_u32(source + last_at))
            tripled = (four & _EVEN) * np.uint64(3) & _EVEN
            tripled |= ((four >> np.uint64(8) & _EVEN) * np.uint64(3) & _EVEN) << np.uint64(8)
            eight = four | tripled << np.uint64(32)
            last = _word_of(_trits(eight, np.uint64(1)), _trits(eight, np.uint64(9)))
            write_u32(lane + (word >> 2) * out.strides[1] + (word & 3) * 64, last)
            word += 1


@kernel
def _pack_plane_of(codes: Bytes, position: int, bits: int, at: int, spans: int, span_bytes: int, out: Bytes) -> None:
    """Add `bits` bits from `position` of every code to the planes; those and the spans as for `pack_plane`."""
    base, target = codes.ctypes.data, out.ctypes.data
    mask, shared = np.uint32((2**bits - 1) * 0x01010101), 8 // bits
    for row in range(codes.shape[0]):
        source, lane = base + row * codes.strides[0], target + row // 16 * out.strides[0] + row % 16 * 4 + at
        for block in range(codes.shape[1] // 4):
            span = lane + block // 16 // spans * out.strides[1] + block // 16 % spans * span_bytes
            to = span + block // 8 % 2 * 64 * bits + block % 8 // shared * 64
            four = (read_u32(source + 4 * block) >> np.uint32(position)) & mask
            write_u32(to, read_u32(to) | (four << np.uint32(bits * (block % shared))))


def pack_codes(values: Bytes, codes: Codes, out: Bytes) -> None:
    """Codes one a byte, [rows, columns] with whole groups of columns, into zeroed planes."""
    _pack_plane_of(values, 0, codes.low, codes.low_at, codes.spans, codes.plane_bytes, out)
    if codes.high:
        _pack_plane_of(values, codes.low, codes.high, codes.high_at, codes.spans, codes.plane_bytes, out)


@kernel
def _transpose(values: Any, out: Bytes) -> None:
    """values [rows, columns] to out [tiles, units * 64 * 16]: column by column, 16 rows each."""
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
    """Put 16 bits (float16, or bfloat16 as uint16) per row and `columns` columns at byte `at` of every unit.

    columns: 16 or 32, or more than a span has for one of a unit.
    """
    rows, count = values.shape
    tiles, units = out.shape[:2]
    each = max(SPAN // columns, 1)
    padded = np.zeros((tiles * ROWS, units * each), values.dtype)
    padded[:rows, :count] = values
    order = padded.reshape(tiles, ROWS, units, each).transpose(0, 2, 3, 1)
    out[:, :, at : at + 32 * each] = np.ascontiguousarray(order).reshape(tiles, units, -1).view(np.uint8)
