"""Reading the codes and scales of packed tiles in a kernel: the one place that knows how every kind lies in memory.

`cpu_kernels.layout` describes it. w: a pointer to the bytes of a matrix; N rows are read at once, of which each has the
offset of its tile and its lane there. L: the kind, as `layout.Layout`.
"""

import triton.language as tl

from .jit import kernel


@kernel
def codes_of(w, unit, lane, ok, number, half: tl.constexpr, L: tl.constexpr, N: tl.constexpr):
    """int8 [32, N]: the weights of half a span in units of their scales. unit [N]: where in w the unit lies; number:
    that of the span in it."""
    planes = unit + number * L.plane_bytes
    stored = _plane(w, planes + L.low_at, lane, ok, half, L.low, N)
    if L.high:
        stored |= _plane(w, planes + L.high_at, lane, ok, half, L.high, N) << L.low
    if L.has_table:
        return _entry(stored, L)
    else:
        return (stored - L.offset).to(tl.int8)


@kernel
def _plane(w, plane, lane, ok, half: tl.constexpr, BITS: tl.constexpr, N: tl.constexpr):
    """Bits of the codes, int32 [32, N]. A word is four columns of a row, with so many blocks of them as it has room
    for: all is read once."""
    words = w.to(tl.pointer_type(tl.int32)) + (plane // 4 + lane)[None, :]
    word = tl.load(words + (16 * BITS * half + 16 * tl.arange(0, BITS))[:, None], mask=ok[None, :], other=0)
    column = tl.arange(0, 32 // BITS)
    shift = BITS * (column // 4) + 8 * (column % 4)
    bits = (word[:, None, :] >> shift[None, :, None]) & (2**BITS - 1)
    return tl.reshape(bits, (32, N))


@kernel
def _entry(code, L: tl.constexpr):
    """Of a table of 16 signed bytes, which four integers hold."""
    low = tl.where((code & 4) != 0, L.table[1], L.table[0])
    high = tl.where((code & 4) != 0, L.table[3], L.table[2])
    return (tl.where((code & 8) != 0, high, low) >> (8 * (code & 3))).to(tl.int8)


@kernel
def scale_of(w, unit, lane, ok, number, place: tl.constexpr, L: tl.constexpr):
    """float32 [N]: scale `place` of a span."""
    if L.parts == "none":
        return _header(w, unit + 32 * place, lane, ok, L)
    else:
        return _header(w, unit, lane, ok, L) * _part(w, unit + L.parts_at, lane, ok, number, place, L).to(tl.float32)


@kernel
def minimum_of(w, unit, lane, ok, number, place: tl.constexpr, L: tl.constexpr):
    """float32 [N]: what the columns of that scale have in addition."""
    if L.parts == "none":
        minimum = _header(w, unit + L.minima_at + 32 * place, lane, ok, L)
        if L.zeros:
            minimum *= scale_of(w, unit, lane, ok, number, place, L)
        return minimum
    else:
        part = _part_of_minimum(w, unit + L.parts_at, lane, ok, number, place, L)
        return _header(w, unit + L.minima_at, lane, ok, L) * part.to(tl.float32)


@kernel
def _header(w, at, lane, ok, L: tl.constexpr):
    bits = tl.load(w.to(tl.pointer_type(tl.int16)) + (at // 2 + lane), mask=ok, other=0)
    if L.bfloat:
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return bits.to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def _part(w, parts, lane, ok, number, place: tl.constexpr, L: tl.constexpr):
    """What a scale of two levels is multiplied by: int32 [N]."""
    if L.parts == "bytes":
        return _byte(w, parts + 64 * number + 16 * place, lane, ok).to(tl.int8).to(tl.int32)
    elif L.parts == "nibbles":
        return _byte(w, parts + 64 * number + 16 * place, lane, ok) & 15
    elif L.parts == "split":
        return _split(w, parts, lane, ok, number, place) - 32
    elif L.minima:
        return _six(w, parts + 48 * number, lane, ok, place)
    else:
        return _six(w, parts + 48 * number, lane, ok, place) - 32


@kernel
def _part_of_minimum(w, parts, lane, ok, number, place: tl.constexpr, L: tl.constexpr):
    if L.parts == "nibbles":
        return _byte(w, parts + 64 * number + 16 * place, lane, ok) >> 4
    else:
        return _six(w, parts + 48 * number, lane, ok, 2 + place)


@kernel
def _byte(w, at, lane, ok):
    return tl.load(w + (at + lane), mask=ok, other=0).to(tl.int32)


@kernel
def _six(w, parts, lane, ok, place: tl.constexpr):
    """One of the four parts of 6 bits of a span."""
    if place == 2:
        return _byte(w, parts + 32, lane, ok) & 63
    else:
        words = tl.load(w.to(tl.pointer_type(tl.int16)) + (parts // 2 + lane), mask=ok, other=0).to(tl.int32)
        above = _byte(w, parts + 32, lane, ok) >> 2 & 48 if place == 3 else 0
        return words >> (6 * place if place < 3 else 12) & (63 if place < 3 else 15) | above


@kernel
def _split(w, parts, lane, ok, number, place: tl.constexpr):
    """A part of 6 bits whose nibble and upper two bits lie apart."""
    above = _byte(w, parts + 16 * (number // 2), lane, ok) >> (4 * (number % 2) + 2 * place) & 3
    nibble = _byte(w, parts + 32 + 16 * number, lane, ok) >> (4 * place) & 15
    return nibble | above << 4
