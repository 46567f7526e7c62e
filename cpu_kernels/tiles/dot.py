"""The micro-kernel of every matrix product: one weight tile (16 rows) times a few activation records.

For each row and token the order of operations is fixed: exact integer sums over the columns of a scale, then one fused
multiply-add per scale in column order (per column for float weights). So a result does not depend on how many tokens
share a call, nor on the register width.
"""

from typing import Any

from llvmlite import ir

from ..layout import GROUP, KINDS, SPAN, Codes
from ..simd import Emit, Value, f32, f32x16, i32, i64, micro_kernel
from .avx2 import dots_by_pairs
from .codes import minima, parts, scales, unsigned_codes
from .floats import SpanBody, float_span

BLOCK = 8  # most activation records per call of a product

# With few tokens the hardware prefetches best; with more, arithmetic hides from it what comes next, and without this
# weights fresh from memory ran at two thirds of the speed.
_BUSY, _AHEAD = 4, 4608


def dot_tile(kind: str) -> Any:
    """The intrinsic `(count, w, spans, rows, out, out_stride)` for up to BLOCK records of one weight kind.

    w: address of the tile; rows: address of int64[count], the records' addresses; out: float32 [count][16],
    out_stride bytes apart. One tile a call reads memory as one stream, which the prefetchers follow best.
    """

    @micro_kernel()
    def dot(e: Emit, count: Value, w: Value, spans: Value, rows: Value, out: Value, out_stride: Value) -> None:
        def some(tokens: int, done: Value) -> None:
            table = e.at(e.pointer(rows), e.b.mul(done, e.const(8)))
            target = e.at(e.pointer(out), e.b.mul(done, out_stride))
            _some_records(e, kind, tokens, e.pointer(w), spans, table, target, out_stride)

        with e.b.if_else(e.b.icmp_signed(">=", count, e.const(BLOCK))) as (whole, rest):
            with whole:
                some(BLOCK, e.const(0))
            with rest:
                for tokens in (4, 2, 1):
                    with e.b.if_then(e.b.icmp_signed("!=", e.b.and_(count, e.const(tokens)), e.const(0))):
                        some(tokens, e.b.and_(count, e.const(-2 * tokens)))

    return dot


def _some_records(
    e: Emit, kind: str, tokens: int, tile: Value, spans: Value, table: Value, target: Value, out_stride: Value
) -> None:
    """The tile times `tokens` records, whose addresses are at `table`."""
    records = [e.pointer(e.load(i64, table, 8 * t, 8)) for t in range(tokens)]
    codes, span_bytes = KINDS[kind].codes, KINDS[kind].span_bytes
    body = _integer_span(codes) if codes else float_span(kind)

    def span(s: Value, totals: list[Value]) -> list[Value]:
        here = e.at(tile, e.b.mul(s, e.const(span_bytes)))
        if tokens >= _BUSY:
            for line in range(0, span_bytes, 64):
                e.prefetch(here, _AHEAD + line)
        return body(e, here, records, s, spans, totals)

    for t, total in enumerate(e.loop(spans, [e.zero()] * tokens, span)):
        e.store(total, target, e.b.mul(out_stride, e.const(t)), 4)


def _integer_span(codes: Codes) -> SpanBody:
    """Two groups of 32 columns: integer dot products, then scale (and minimum) by fused multiply-adds."""

    def group(e: Emit, tile: Value, records: list[Value], half: int, where: Value, totals: list[Value]) -> list[Value]:
        scales_at, sums_at, codes_at = where
        inputs = [e.at(x, codes_at) for x in records]
        factors = [e.load(f32, x, scales_at, 4) for x in records]
        by_part = _sums_by_part(e, codes, inputs, [e.load(i32, x, sums_at, 4) for x in records])
        for part, sums in enumerate(by_part):
            place = half * parts(codes) + part
            dots = _dots(e, codes, tile, inputs, place, sums)
            weight_scale = scales(e, codes, tile, place)
            for t, (factor, dot, code_sum) in enumerate(zip(factors, dots, sums, strict=True)):
                totals[t] = e.fma(e.b.sitofp(dot, f32x16), e.b.fmul(weight_scale, e.splat(factor)), totals[t])
                if codes.minima:
                    level = e.b.fmul(factor, e.b.sitofp(code_sum, f32))
                    totals[t] = e.fma(minima(e, codes, tile, place), e.splat(level), totals[t])
        return totals

    def body(e: Emit, tile: Value, records: list[Value], s: Value, spans: Value, totals: list[Value]) -> list[Value]:
        columns = e.b.mul(spans, e.const(SPAN))
        for half in range(2):
            column = e.b.add(e.b.mul(s, e.const(SPAN)), e.const(GROUP * half))
            scales_at = e.b.add(columns, e.b.lshr(column, e.const(3)))
            sums_at = e.b.add(scales_at, e.b.lshr(columns, e.const(3)))
            totals = group(e, tile, records, half, (scales_at, sums_at, column), list(totals))
        return totals

    return body


def _sums_by_part(e: Emit, codes: Codes, inputs: list[Value], sums: list[Value]) -> list[list[Value]]:
    """Per scale of a group and token, the sum of the activations' codes, of which records hold only the group's."""
    if parts(codes) == 1:
        return [sums]
    first = [e.sum_bytes(x) for x in inputs]
    return [first, [e.b.sub(total, low) for total, low in zip(sums, first, strict=True)]]


def _dots(e: Emit, codes: Codes, tile: Value, inputs: list[Value], place: int, sums: list[Value]) -> list[Value]:
    """Per token, exact sums of weight (in units of its scale) times code over the columns of one scale."""
    half, part = divmod(place, parts(codes))
    blocks = [(half, codes.columns // 4 * part + i) for i in range(codes.columns // 4)]
    if e.tier.maddubs:
        return dots_by_pairs(e, codes, tile, inputs, blocks, sums)
    accs = [e.splat(e.b.mul(total, ir.Constant(i32, -codes.offset))) for total in sums]
    for _, block in blocks:
        weights = unsigned_codes(e, codes, tile, half, block)
        accs = [e.dot_u8s8(a, weights, e.load(i32, x, 4 * block, 4)) for a, x in zip(accs, inputs, strict=True)]
    return accs
