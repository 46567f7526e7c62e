"""Reading the codes and scales of a span: the one place that knows how every packed kind lies in memory."""

from ..layout import GROUP, SPAN, Codes
from ..simd import Emit, Value, i8x64, i32x16


def unsigned_codes(e: Emit, codes: Codes, span: Value, half: int, block: int) -> Value:
    """Of 4 columns (block 0 .. 7 of a group) x 16 rows, the weights in units of their scales, plus `offset`: bytes."""
    stored = stored_codes(e, codes, span, half, block)
    return e.lookup(codes.unsigned, stored) if codes.table else stored


def stored_codes(e: Emit, codes: Codes, span: Value, half: int, block: int) -> Value:
    """The same as they are stored, before any table: bytes."""
    value = _plane(e, span, codes.low_at, codes.low, half, block, 0)
    if codes.high:
        value = e.b.or_(value, _plane(e, span, codes.high_at, codes.high, half, block, codes.low))
    return value


def _plane(e: Emit, span: Value, at: int, bits: int, half: int, block: int, position: int) -> Value:
    """A block's bits of a plane, moved to `position` in their bytes."""
    vector, place = divmod(block, 8 // bits)
    plane = e.load(i8x64, span, at + 64 * (bits * half + vector), 64)
    if bits == 8:
        return plane
    words, shift = e.b.bitcast(plane, i32x16), bits * place - position
    # what other bytes shift in is masked away
    words = e.b.lshr(words, e.constant(i32x16, shift)) if shift > 0 else e.b.shl(words, e.constant(i32x16, -shift))
    return e.b.and_(e.b.bitcast(words, i8x64), e.constant(i8x64, (2**bits - 1) << position))


def parts(codes: Codes) -> int:
    """How many scales a group of columns has."""
    return GROUP // codes.columns


def scales(e: Emit, codes: Codes, span: Value, place: int) -> Value:
    """The scales of the 16 rows; place: 0 .. 64 / columns - 1."""
    return _header(e, codes, span, 32 * place)


def minima(e: Emit, codes: Codes, span: Value, place: int) -> Value:
    """The minima of the 16 rows, for the columns that `scales` belong to."""
    assert codes.minima and place < SPAN // codes.columns
    level = _header(e, codes, span, codes.minima_at + 32 * place)
    return e.b.fmul(level, scales(e, codes, span, place)) if codes.zeros else level


def _header(e: Emit, codes: Codes, span: Value, at: int) -> Value:
    return (e.load_bfloat if codes.bfloat else e.load_half)(span, at)
