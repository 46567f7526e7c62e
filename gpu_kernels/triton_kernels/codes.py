"""Reading the codes and scales of packed tiles in a kernel: the one place that knows how every kind lies in memory.

`cpu_kernels.layout` describes it. N rows are read at once. unit: a pointer to the unit in the first of their tiles;
lines: of each row how many bytes further its tile lies, its lane in the tile, and whether it is there; number: that of
a span in its unit; L: the kind, as `layout.Layout`.
"""

import triton.language as tl

from .arithmetic import bfloat
from .jit import kernel


@kernel
def words_of(unit, number, lines, half: tl.constexpr, L: tl.constexpr):
    """The bits of half a span, as they lie in the low and in the high plane, for `codes_of`."""
    planes = unit + number * L.plane_bytes
    low = _words(planes + L.low_at, lines, half, L.low)
    return low, _words(planes + L.high_at, lines, half, L.high) if L.high else low


@kernel
def _words(plane, lines, half: tl.constexpr, BITS: tl.constexpr):
    """int32 [BITS, N]: four columns of a row, with so many blocks of them as there is room for."""
    away, lane, ok = lines
    vector = 16 * (BITS * half + tl.arange(0, BITS))
    at = plane.to(tl.pointer_type(tl.int32)) + (vector[:, None] + (away // 4 + lane)[None, :])
    return tl.load(at, mask=ok[None, :], other=0)


@kernel
def codes_of(words, L: tl.constexpr, N: tl.constexpr):
    """int8 [32, N]: the weights of half a span in units of their scales."""
    stored = _codes(words[0], L.low, N)
    if L.high:
        stored |= _codes(words[1], L.high, N) << L.low
    if L.has_table:
        return _entry(stored, L)
    else:
        return (stored - L.offset).to(tl.int8)


@kernel
def _codes(words, BITS: tl.constexpr, N: tl.constexpr):
    """int32 [32, N]: the bits of every column."""
    column = tl.arange(0, 32 // BITS)
    shift = BITS * (column // 4) + 8 * (column % 4)
    bits = (words[:, None, :] >> shift[None, :, None]) & (2**BITS - 1)
    return tl.reshape(bits, (32, N))


@kernel
def _entry(code, L: tl.constexpr):
    """Of a table of 16 signed bytes, which four integers hold."""
    low = tl.where((code & 4) != 0, L.table[1], L.table[0])
    high = tl.where((code & 4) != 0, L.table[3], L.table[2])
    return (tl.where((code & 8) != 0, high, low) >> (8 * (code & 3))).to(tl.int8)


@kernel
def levels_of(unit, number, lines, half: tl.constexpr, L: tl.constexpr):
    """The scales of half a span, each with its minimum. One scale stands twice; without minima they mean nothing."""
    PARTS: tl.constexpr = 32 // L.columns
    first, last = (
        scale_of(unit, number, lines, PARTS * half, L),
        scale_of(unit, number, lines, PARTS * half + PARTS - 1, L),
    )
    if L.minima:
        low = minimum_of(unit, number, lines, PARTS * half, L)
        return first, low, last, minimum_of(unit, number, lines, PARTS * half + PARTS - 1, L)
    else:
        return first, first, last, last


@kernel
def scale_of(unit, number, lines, place: tl.constexpr, L: tl.constexpr):
    """float32 [N]: scale `place` of a span."""
    if L.parts == "none":
        return _header(unit + 32 * place, lines, L)
    else:
        return _header(unit, lines, L) * _part(unit + L.parts_at, number, lines, place, L).to(tl.float32)


@kernel
def minimum_of(unit, number, lines, place: tl.constexpr, L: tl.constexpr):
    """float32 [N]: what the columns of that scale have in addition."""
    if L.parts == "none":
        minimum = _header(unit + (L.minima_at + 32 * place), lines, L)
        if L.zeros:
            minimum *= scale_of(unit, number, lines, place, L)
        return minimum
    else:
        part = _part_of_minimum(unit + L.parts_at, number, lines, place, L)
        return _header(unit + L.minima_at, lines, L) * part.to(tl.float32)


@kernel
def _header(at, lines, L: tl.constexpr):
    bits = _short(at, lines)
    if L.bfloat:
        return bfloat(bits)
    else:
        return bits.to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def _part(parts, number, lines, place: tl.constexpr, L: tl.constexpr):
    """What a scale of two levels is multiplied by: int32 [N]."""
    if L.parts == "bytes":
        return _byte(parts + (64 * number + 16 * place), lines).to(tl.int8).to(tl.int32)
    elif L.parts == "nibbles":
        return _byte(parts + (64 * number + 16 * place), lines) & 15
    elif L.parts == "split":
        return _split(parts, number, lines, place) - 32
    elif L.minima:
        return _six(parts + 48 * number, lines, place)
    else:
        return _six(parts + 48 * number, lines, place) - 32


@kernel
def _part_of_minimum(parts, number, lines, place: tl.constexpr, L: tl.constexpr):
    if L.parts == "nibbles":
        return _byte(parts + (64 * number + 16 * place), lines) >> 4
    else:
        return _six(parts + 48 * number, lines, 2 + place)


@kernel
def _six(parts, lines, place: tl.constexpr):
    """One of the four parts of 6 bits of a span."""
    if place == 2:
        return _byte(parts + 32, lines) & 63
    elif place == 3:
        return _short(parts, lines).to(tl.int32) >> 12 & 15 | _byte(parts + 32, lines) >> 2 & 48
    else:
        return _short(parts, lines).to(tl.int32) >> (6 * place) & 63


@kernel
def _split(parts, number, lines, place: tl.constexpr):
    """A part of 6 bits whose nibble and upper two bits lie apart."""
    above = _byte(parts + 16 * (number // 2), lines) >> (4 * (number % 2) + 2 * place) & 3
    nibble = _byte(parts + (32 + 16 * number), lines) >> (4 * place) & 15
    return nibble | above << 4


@kernel
def _byte(at, lines):
    away, lane, ok = lines
    return tl.load(at + (away + lane), mask=ok, other=0).to(tl.int32)


@kernel
def _short(at, lines):
    """int16 [N]"""
    away, lane, ok = lines
    return tl.load(at.to(tl.pointer_type(tl.int16)) + (away // 2 + lane), mask=ok, other=0)
