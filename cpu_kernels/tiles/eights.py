"""8-bit floats (E4M3) in registers: the product and the row reader of the kind "f8", which has a scale a row and span.

Shifted into the place of a float16, a code is 2^-8 of its number: exponents are counted from 15 there and not from 7,
and what lies below the smallest exponent is counted alike in both. So decoding is exact and needs no table, on every
tier.
"""

from llvmlite import ir

from ..layout import ROWS, SPAN
from ..simd import Emit, Value, f32, f32x16, i16x16

_CODES_AT = 4 * ROWS
_PAIRS = 4  # columns by two in a turn of the loop


def eights_span(e: Emit, span: Value, records: list[Value], s: Value, _: Value, totals: list[Value]) -> list[Value]:
    """64 columns times float32 activations.

    A token has two sums, of the even columns and of the odd ones, as one would wait for itself; their sum is scaled.
    """

    def some(i: Value, sums: list[Value]) -> list[Value]:
        here = e.at(span, e.b.mul(i, e.const(32 * _PAIRS)))
        first = e.b.add(e.b.mul(s, e.const(4 * SPAN)), e.b.mul(i, e.const(8 * _PAIRS)))
        inputs = [e.at(x, first) for x in records]
        for pair in range(_PAIRS):
            columns = _two_columns(e, here, _CODES_AT + 32 * pair)
            sums = [
                e.fma(columns[n % 2], e.splat(e.load(f32, inputs[n // 2], 8 * pair + 4 * (n % 2), 4)), total)
                for n, total in enumerate(sums)
            ]
        return sums

    sums = e.loop(e.const(SPAN // (2 * _PAIRS)), [e.zero()] * (2 * len(totals)), some)
    scale = _scale(e, span)
    return [
        e.fma(scale, e.b.fadd(even, odd), total) for even, odd, total in zip(sums[::2], sums[1::2], totals, strict=True)
    ]


def unpack_eights(e: Emit, _: str, span: Value, lane: Value, out: Value) -> None:
    """One row of a span: float32[64] at `out`."""
    scale = e.b.extract_element(_scale(e, span), lane)

    def pair(i: Value, carried: list[Value]) -> list[Value]:
        columns = _two_columns(e, e.at(span, e.b.mul(i, e.const(32))), _CODES_AT)
        for n, column in enumerate(columns):
            value = e.b.fmul(e.b.extract_element(column, lane), scale)
            e.store(value, out, e.b.add(e.b.mul(i, e.const(8)), e.const(4 * n)), 4)
        return carried

    e.loop(e.const(SPAN // 2), [], pair)


def _two_columns(e: Emit, pointer: Value, at: int) -> tuple[Value, Value]:
    """2^-8 of the numbers of two columns, of which each row has its codes side by side."""
    codes = e.load(i16x16, pointer, at, 32)
    even = e.b.shl(codes, e.constant(i16x16, 8))
    first, second = (_as_half(e, high) for high in (even, codes))
    return first, second


def _as_half(e: Emit, codes: Value) -> Value:
    """A code in the high byte: its sign stays, the rest moves by one, and what else there is goes."""
    moved = e.b.ashr(codes, e.constant(i16x16, 1))
    return e.half_to_float(e.b.and_(moved, ir.Constant(i16x16, [0xBF80] * ROWS)))


def _scale(e: Emit, span: Value) -> Value:
    return e.b.fmul(e.load(f32x16, span, 0, 64), e.constant(f32x16, 256.0))
