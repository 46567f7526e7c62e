"""Reading the codes and scales of a span: the one place that knows how every packed kind lies in memory."""

from dataclasses import dataclass

from llvmlite import ir

from ..layout import GROUP, ROWS, SPAN, Codes
from ..simd import Emit, Value, f32x16, i8, i8x64, i16x16, i32, i32x16

_i8x16 = ir.VectorType(i8, 16)


@dataclass(frozen=True, slots=True)
class Unit:
    """A pointer to a unit, and of scales of two levels the upper one, of its minima too; `factor` multiplies minima."""

    pointer: Value
    factor: float
    scale: Value = None
    minimum: Value = None


@dataclass(frozen=True, slots=True)
class Span:
    """A span: its unit, its number there, and a pointer from which offsets of its planes count."""

    unit: Unit
    number: Value
    planes: Value


def unit_at(e: Emit, codes: Codes, tile: Value, number: Value, factor: float = 1.0) -> Unit:
    """A unit of a tile, whose minima are read as multiplied by a power of two."""
    pointer = e.at(tile, e.b.mul(number, e.const(codes.unit_bytes)))
    if not codes.parts:
        return Unit(pointer, factor)
    scale = _header(e, codes, pointer, 0)
    return Unit(pointer, factor, scale, _scaled(e, codes, pointer, codes.minima_at, factor) if codes.minima else None)


def span_at(e: Emit, codes: Codes, unit: Unit, number: Value) -> Span:
    """A span of a unit."""
    return Span(unit, number, e.at(unit.pointer, e.b.mul(number, e.const(codes.plane_bytes))))


def unsigned_codes(e: Emit, codes: Codes, planes: Value, half: int, block: int) -> Value:
    """Of 4 columns (block 0 .. 7 of a group) x 16 rows, the weights in units of their scales, plus `offset`: bytes."""
    stored = stored_codes(e, codes, planes, half, block)
    return e.lookup(codes.unsigned, stored) if codes.table else stored


def stored_codes(e: Emit, codes: Codes, planes: Value, half: int, block: int) -> Value:
    """The same as they are stored, before any table: bytes."""
    value = _plane(e, planes, codes.low_at, codes.low, half, block, 0)
    if codes.high:
        value = e.b.or_(value, _plane(e, planes, codes.high_at, codes.high, half, block, codes.low))
    return value


def _plane(e: Emit, planes: Value, at: int, bits: int, half: int, block: int, position: int) -> Value:
    """A block's bits of a plane, moved to `position` in their bytes."""
    vector, place = divmod(block, 8 // bits)
    plane = e.load(i8x64, planes, at + 64 * (bits * half + vector), 64)
    if bits == 8:
        return plane
    words, shift = e.b.bitcast(plane, i32x16), bits * place - position
    # what other bytes shift in is masked away
    words = e.b.lshr(words, e.constant(i32x16, shift)) if shift > 0 else e.b.shl(words, e.constant(i32x16, -shift))
    return e.b.and_(e.b.bitcast(words, i8x64), e.constant(i8x64, (2**bits - 1) << position))


def parts(codes: Codes) -> int:
    """How many scales a group of columns has."""
    return GROUP // codes.columns


def scales(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    """The scales of the 16 rows; place: 0 .. 64 / columns - 1."""
    if codes.parts:
        return _times(e, span.unit.scale, _part(e, codes, span, place))
    return _header(e, codes, span.unit.pointer, 2 * ROWS * place)


def minima(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    """The minima of the 16 rows, for the columns that `scales` belong to, times the unit's factor."""
    assert codes.minima and place < SPAN // codes.columns
    if codes.parts:
        return _times(e, span.unit.minimum, _part_of_minimum(e, codes, span, place))
    level = _scaled(e, codes, span.unit.pointer, codes.minima_at + 2 * ROWS * place, span.unit.factor)
    return e.b.fmul(level, scales(e, codes, span, place)) if codes.zeros else level


def _header(e: Emit, codes: Codes, unit: Value, at: int) -> Value:
    return (e.load_bfloat if codes.bfloat else e.load_half)(unit, at)


def _scaled(e: Emit, codes: Codes, unit: Value, at: int, factor: float) -> Value:
    value = _header(e, codes, unit, at)
    return value if factor == 1 else e.b.fmul(value, e.constant(f32x16, factor))


def _times(e: Emit, scale: Value, part: Value) -> Value:
    return e.b.fmul(scale, e.b.sitofp(part, f32x16))


def _part(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    """What a scale of the 16 rows has to be multiplied by: i32x16."""
    if codes.parts == "bytes":
        return e.b.sext(_bytes_of_span(e, codes, span, place), i32x16)
    if codes.parts == "nibbles":
        return e.b.and_(e.b.zext(_bytes_of_span(e, codes, span, place), i32x16), e.constant(i32x16, 15))
    if codes.parts == "sixes" and codes.minima:
        return _six(e, codes, span, place)
    raised = _six(e, codes, span, place) if codes.parts == "sixes" else _split(e, codes, span, place)
    return e.b.sub(raised, e.constant(i32x16, 32))


def _part_of_minimum(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    if codes.parts == "nibbles":
        return e.b.lshr(e.b.zext(_bytes_of_span(e, codes, span, place), i32x16), e.constant(i32x16, 4))
    return _six(e, codes, span, 2 + place)


def _bytes_of_span(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    """A byte of each row for each scale."""
    here = e.at(span.unit.pointer, e.b.mul(span.number, e.const(SPAN // codes.columns * ROWS)))
    return e.load(_i8x16, here, codes.parts_at + ROWS * place, 16)


def _six(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    """One of the four parts of 6 bits of a span."""
    here = e.at(span.unit.pointer, e.b.mul(span.number, e.const(3 * ROWS)))
    words, rest = e.load(i16x16, here, codes.parts_at, 16), e.load(_i8x16, here, codes.parts_at + 2 * ROWS, 16)
    words, rest = e.b.zext(words, i32x16), e.b.zext(rest, i32x16)
    if place == 3:
        above = e.b.and_(e.b.lshr(rest, e.constant(i32x16, 2)), e.constant(i32x16, 48))
        return e.b.or_(e.b.lshr(words, e.constant(i32x16, 12)), above)
    if place == 1:
        words = e.b.lshr(words, e.constant(i32x16, 6))
    return e.b.and_(rest if place == 2 else words, e.constant(i32x16, 63))


def _split(e: Emit, codes: Codes, span: Span, place: int) -> Value:
    """A part of 6 bits whose nibble and upper two bits lie apart."""
    pairs_at = e.b.mul(e.b.lshr(span.number, e.const(1)), e.const(ROWS))
    pairs = e.b.zext(e.load(_i8x16, e.at(span.unit.pointer, pairs_at), codes.parts_at, 16), i32x16)
    shift = e.b.add(e.b.mul(e.b.and_(span.number, e.const(1)), e.const(4)), e.const(2 * place))
    above = e.b.and_(e.b.lshr(pairs, e.splat(e.b.trunc(shift, i32))), e.constant(i32x16, 3))
    here = e.at(span.unit.pointer, e.b.mul(span.number, e.const(ROWS)))
    nibbles = e.b.zext(e.load(_i8x16, here, codes.parts_at + 2 * ROWS, 16), i32x16)
    nibble = e.b.and_(nibbles, e.constant(i32x16, 15)) if place == 0 else e.b.lshr(nibbles, e.constant(i32x16, 4))
    return e.b.or_(nibble, e.b.shl(above, e.constant(i32x16, 4)))
