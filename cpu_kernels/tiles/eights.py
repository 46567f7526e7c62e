"""8-bit floats (E4M3) in registers: the product and the row reader of the kind "f8", which has a scale a row and span.

Shifted into the place of a float16, a code is 2^-8 of its number: exponents are counted from 15 there and not from 7,
and what lies below the smallest exponent is counted alike in both. So decoding is exact and needs no table, on every
tier.
"""

from llvmlite import ir

from ..layout import KINDS, ROWS, SPAN
from ..simd import Emit, Value, f32, f32x16, i16x16

_CODES_AT = 4 * ROWS
_PAIRS = 4  # columns by two in a turn of the loop
_SUMS = 4  # of a token in a span: the columns that are alike modulo 4, as one sum would wait for itself
_AT_ONCE = 16  # sums that stay in registers


def eights_span(e: Emit, tile: Value, s: Value, records: list[Value], totals: list[Value]) -> list[Value]:
    """64 columns times float32 activations: the sums of a token are added up by halves, then scaled."""
    span = e.at(tile, e.b.mul(s, e.const(KINDS["f8"].unit_bytes)))
    inputs = [e.at(x, e.b.mul(s, e.const(4 * SPAN))) for x in records]
    if _SUMS * len(records) <= _AT_ONCE:
        sums = _sums(e, span, inputs, (0, 1))
    else:
        sums = [a + b for a, b in zip(*(_sums(e, span, inputs, (turn,)) for turn in (0, 1)), strict=True)]
    scale = _scale(e, span)
    return [e.fma(scale, _added(e, parts), total) for parts, total in zip(sums, totals, strict=True)]


def _sums(e: Emit, span: Value, inputs: list[Value], turns: tuple[int, ...]) -> list[list[Value]]:
    """By token, two sums for each turn: over the first two of every four columns, or over the second two."""

    def some(i: Value, sums: list[Value]) -> list[Value]:
        here, sums = e.at(span, e.b.mul(i, e.const(32 * _PAIRS))), list(sums)
        rows = [e.at(x, e.b.mul(i, e.const(8 * _PAIRS))) for x in inputs]
        for pair in range(_PAIRS):
            if pair % 2 not in turns:
                continue
            for side, column in enumerate(_two_columns(e, here, _CODES_AT + 32 * pair)):
                for t, x in enumerate(rows):
                    n = width * t + 2 * turns.index(pair % 2) + side
                    sums[n] = e.fma(column, e.splat(e.load(f32, x, 8 * pair + 4 * side, 4)), sums[n])
        return sums

    width = 2 * len(turns)
    sums = e.loop(e.const(SPAN // (2 * _PAIRS)), [e.zero()] * (width * len(inputs)), some)
    return [sums[first : first + width] for first in range(0, len(sums), width)]


def _added(e: Emit, parts: list[Value]) -> Value:
    first, second, third, fourth = parts
    return e.b.fadd(e.b.fadd(first, second), e.b.fadd(third, fourth))


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
