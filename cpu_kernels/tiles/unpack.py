"""Reading one row out of a packed matrix as float32: the embedding lookup, and the tests' way back."""

from typing import Any

from llvmlite import ir

from ..features import Tier
from ..layout import GROUP, KINDS, SPAN, Codes
from ..simd import Emit, Value, f32, f32x16, i8, i32, i32x16, micro_kernel
from .codes import Span, minima, scales, span_at, unit_at, unsigned_codes
from .eights import unpack_eights

_F32X4, _I32X4, _I8X4 = (ir.VectorType(kind, 4) for kind in (f32, i32, i8))


def unpack_row(kind: str, tier: Tier | None = None) -> Any:
    """The intrinsic `(tile, lane, spans, out)`: row `lane` of a tile to float32[spans * 64] at `out`.

    tier: as for `micro_kernel`.
    """
    layout = KINDS[kind]

    @micro_kernel(tier=tier)
    def unpack(e: Emit, tile: Value, lane: Value, spans: Value, out: Value) -> None:
        source, target = e.pointer(tile), e.pointer(out)

        def span(s: Value, carried: list[Value]) -> list[Value]:
            row, here = e.b.trunc(lane, i32), e.at(target, e.b.mul(s, e.const(4 * SPAN)))
            if layout.codes:
                unit = unit_at(e, layout.codes, source, e.b.udiv(s, e.const(layout.spans)))
                number = e.b.urem(s, e.const(layout.spans))
                _unpack_integer(e, layout.codes, span_at(e, layout.codes, unit, number), row, here)
            else:
                _FLOATS[kind](e, kind, e.at(source, e.b.mul(s, e.const(layout.unit_bytes))), row, here)
            return carried

        e.loop(spans, [], span)

    return unpack


def _unpack_float(e: Emit, kind: str, span: Value, lane: Value, out: Value) -> None:
    step = KINDS[kind].unit_bytes // SPAN
    load = {"f32": lambda p: e.load(f32x16, p), "f16": e.load_half}[kind]

    def column(c: Value, carried: list[Value]) -> list[Value]:
        vector = load(e.at(span, e.b.mul(c, e.const(step))))
        e.store(e.b.extract_element(vector, lane), out, e.b.mul(c, e.const(4)), 4)
        return carried

    e.loop(e.const(SPAN), [], column)


def _unpack_pairs(e: Emit, _: str, span: Value, lane: Value, out: Value) -> None:
    def pair(c: Value, carried: list[Value]) -> list[Value]:
        bits = e.b.extract_element(e.load(i32x16, e.at(span, e.b.mul(c, e.const(64))), 0, 64), lane)
        even, odd = e.b.shl(bits, ir.Constant(i32, 16)), e.b.and_(bits, ir.Constant(i32, 0xFFFF0000))
        for column, value in enumerate((even, odd)):
            e.store(value, e.at(out, e.b.mul(c, e.const(8))), 4 * column, 4)
        return carried

    e.loop(e.const(SPAN // 2), [], pair)


def _unpack_integer(e: Emit, codes: Codes, span: Span, lane: Value, out: Value) -> None:
    for block in range(SPAN // 4):
        place = 4 * block // codes.columns
        half, inside = divmod(block, GROUP // 4)
        lanes = e.b.bitcast(unsigned_codes(e, codes, span.planes, half, inside), i32x16)
        four = e.b.zext(e.b.bitcast(e.b.extract_element(lanes, lane), _I8X4), _I32X4)
        signed = e.b.sitofp(e.b.sub(four, e.constant(_I32X4, codes.offset)), _F32X4)
        values = e.b.fmul(signed, e.splat(e.b.extract_element(scales(e, codes, span, place), lane), 4))
        if codes.minima:
            values = e.b.fadd(values, e.splat(e.b.extract_element(minima(e, codes, span, place), lane), 4))
        e.store(values, out, 16 * block, 4)


_FLOATS = {"f32": _unpack_float, "f16": _unpack_float, "bf16": _unpack_pairs, "f8": unpack_eights}
