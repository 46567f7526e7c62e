"""Reading one row out of a packed matrix as float32: the embedding lookup, and the tests' way back."""

from typing import Any

from llvmlite import ir

from ..layout import GROUP, KINDS, SPAN
from ..simd import Emit, Value, f32, f32x16, i8, i32, i64, micro_kernel

_F32X4, _I32X4, _I8X4 = (ir.VectorType(kind, 4) for kind in (f32, i32, i8))


def unpack_row(kind: str) -> Any:
    """The intrinsic `(tile, lane, spans, out)`: row `lane` of a tile to float32[spans * 64] at `out`."""
    body = _unpack_integer if KINDS[kind].quantised else _unpack_float

    @micro_kernel()
    def unpack(e: Emit, tile: Value, lane: Value, spans: Value, out: Value) -> None:
        source, target = e.pointer(tile), e.pointer(out)

        def span(s: Value, carried: list[Value]) -> list[Value]:
            here = e.at(source, e.b.mul(s, e.const(KINDS[kind].span_bytes)))
            body(e, kind, here, e.b.trunc(lane, i32), e.at(target, e.b.mul(s, e.const(4 * SPAN))))
            return carried

        e.loop(spans, [], span)

    return unpack


def _unpack_float(e: Emit, kind: str, span: Value, lane: Value, out: Value) -> None:
    step = KINDS[kind].span_bytes // SPAN
    load = {"f32": lambda p: e.load(f32x16, p), "f16": e.load_half, "bf16": e.load_bfloat}[kind]

    def column(c: Value, carried: list[Value]) -> list[Value]:
        vector = load(e.at(span, e.b.mul(c, e.const(step))))
        e.store(e.b.extract_element(vector, lane), out, e.b.mul(c, e.const(4)), 4)
        return carried

    e.loop(e.const(SPAN), [], column)


def _unpack_integer(e: Emit, kind: str, span: Value, lane: Value, out: Value) -> None:
    at_lane = e.b.mul(e.b.zext(lane, i64), e.const(4))
    for half in range(2):
        scale = e.splat(e.b.extract_element(e.load_half(span, 32 * half), lane), 4)
        for vector in range(GROUP // 4):
            codes = _four_codes(e, kind, e.at(span, at_lane), half, vector)
            signed = e.b.sub(codes, e.constant(_I32X4, KINDS[kind].offset))
            values = e.b.fmul(e.b.sitofp(signed, _F32X4), scale)
            if kind == "q4m":
                minimum = e.b.extract_element(e.load_half(span, 64 + 32 * half), lane)
                values = e.b.fadd(values, e.splat(minimum, 4))
            e.store(values, out, 4 * (GROUP * half + 4 * vector), 4)


def _four_codes(e: Emit, kind: str, lane_base: Value, half: int, vector: int) -> Value:
    header = KINDS[kind].header
    if kind == "q8":
        packed = e.load(i32, lane_base, header + 512 * half + 64 * vector, 4)
    else:
        packed = e.load(i32, lane_base, header + 256 * half + 64 * (vector // 2), 4)
        packed = e.b.lshr(packed, ir.Constant(i32, 4 * (vector % 2)))
        packed = e.b.and_(packed, ir.Constant(i32, 0x0F0F0F0F))
    return e.b.zext(e.b.bitcast(packed, _I8X4), _I32X4)
