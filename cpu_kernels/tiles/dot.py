"""The micro-kernel of matrix products with codes: one weight tile (16 rows) times a few activation records.

For each row and token the order of operations is fixed: exact integer sums over the columns of a scale, then one fused
multiply-add per scale in column order, and one per span of 64 for the records' scale (of 8-bit floats `eights` tells).
So a result does not depend on how many tokens share a call, nor on the register width.
"""

from collections.abc import Callable
from typing import Any

from ..features import Tier
from ..layout import GROUP, KINDS, SPAN, SUMS, Codes
from ..simd import Emit, Value, f32, f32x16, i32, i32x16, i64, micro_kernel
from .avx2 import dots_by_pairs
from .codes import minima, parts, scales, unsigned_codes
from .eights import eights_span

BLOCK = 8  # most activation records per call of a product

# With few tokens the hardware prefetches best; with more, arithmetic hides from it what comes next, and without this
# weights fresh from memory ran at two thirds of the speed.
_BUSY, _AHEAD = 4, 4608

_AT_ONCE = 4  # tokens whose sums fit into 16 registers of 256 bits, beside the weights


def dot_tile(kind: str, tier: Tier | None = None) -> Any:
    """The intrinsic `(count, w, spans, rows, out, out_stride)` for up to BLOCK records of one kind of codes.

    w: address of the tile; rows: address of int64[count], the records' addresses; out: float32 [count][16],
    out_stride bytes apart. One tile a call reads memory as one stream, which the prefetchers follow best.
    tier: as for `micro_kernel`.
    """

    @micro_kernel(tier=tier)
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
    body = _integer_span(codes) if codes else eights_span
    at_once = tokens if e.tier.registers >= 32 else _AT_ONCE

    def span(s: Value, totals: list[Value]) -> list[Value]:
        here = e.at(tile, e.b.mul(s, e.const(span_bytes)))
        if tokens >= _BUSY:
            for line in range(0, span_bytes, 64):
                e.prefetch(here, _AHEAD + line)
        sums: list[Value] = []
        for first in range(0, tokens, at_once):
            if first:
                e.keep_order()  # else unpacked weights wait on the stack
            some = slice(first, first + at_once)
            sums += body(e, here, records[some], s, spans, totals[some])
        return sums

    for t, total in enumerate(e.loop(spans, [e.zero()] * tokens, span)):
        e.store(total, target, e.b.mul(out_stride, e.const(t)), 4)


_SpanBody = Callable[[Emit, Value, list[Value], Value, Value, list[Value]], list[Value]]


def _integer_span(codes: Codes) -> _SpanBody:
    """Integer dot products, each times its weights' scale; their sum over the span times the record's scale."""

    def body(e: Emit, tile: Value, records: list[Value], s: Value, spans: Value, totals: list[Value]) -> list[Value]:
        columns, here = e.b.mul(spans, e.const(SPAN)), e.b.mul(s, e.const(SPAN))
        inputs = [e.at(x, here) for x in records]
        sums_at = _sums_at(e, codes, columns, here)
        sums = [e.at(x, sums_at) for x in records]
        values = [e.zero()] * len(records)
        for place in range(SPAN // codes.columns):
            if codes.columns < GROUP or codes.minima:
                e.keep_order()  # else loads are moved up, and registers run out
            weight_scale = scales(e, codes, tile, place)
            products = zip(_dots(e, codes, tile, inputs, place, sums), values, strict=True)
            first = place == 0
            values = [e.b.fmul(dot, weight_scale) if first else e.fma(dot, weight_scale, v) for dot, v in products]
            if codes.minima:
                level = e.b.fmul(minima(e, codes, tile, place), e.constant(f32x16, 1 / SUMS[codes.columns]))
                values = [e.fma(level, _as_floats(e, x, 4 * place), v) for x, v in zip(sums, values, strict=True)]
        scales_at = e.b.add(columns, e.b.lshr(here, e.const(4)))
        factors = [e.splat(e.load(f32, x, scales_at, 4)) for x in records]
        return [e.fma(v, factor, total) for v, factor, total in zip(values, factors, totals, strict=True)]

    return body


def _as_floats(e: Emit, sums: Value, at: int) -> Value:
    """A sum of codes in every lane."""
    return e.b.sitofp(e.splat(e.load(i32, sums, at, 4)), f32x16)


def _sums_at(e: Emit, codes: Codes, columns: Value, here: Value) -> Value:
    """Where in a record the sums lie that a kind with such scales reads, of the span from column `here` on."""
    first = e.b.add(columns, e.b.lshr(columns, e.const(4)))
    if codes.columns == GROUP:
        return e.b.add(first, e.b.lshr(here, e.const(3)))
    return e.b.add(e.b.add(first, e.b.lshr(columns, e.const(3))), e.b.lshr(here, e.const(2)))


def _dots(e: Emit, codes: Codes, tile: Value, inputs: list[Value], place: int, sums: list[Value]) -> list[Value]:
    """Per token, exact sums of weight (in units of its scale) times code over the columns of one scale, as floats."""
    half, part = divmod(place, parts(codes))
    inputs = [e.at(x, GROUP * half) for x in inputs]
    blocks = [(half, codes.columns // 4 * part + i) for i in range(codes.columns // 4)]
    accs = [_correction(e, codes.columns, codes.offset, x, 4 * place) for x in sums]
    if e.tier.avx2 and not e.tier.vnni:
        return [e.b.sitofp(dot, f32x16) for dot in dots_by_pairs(e, codes, tile, inputs, blocks, accs)]
    for _, block in blocks:
        weights = unsigned_codes(e, codes, tile, half, block)
        accs = [e.dot_u8s8(a, weights, e.load(i32, x, 4 * block, 4)) for a, x in zip(accs, inputs, strict=True)]
    return [e.b.sitofp(acc, f32x16) for acc in accs]


def _correction(e: Emit, columns: int, offset: int, sums: Value, at: int) -> Value:
    """- offset x a sum of codes over `columns`, of which the record holds SUMS times."""
    if offset == 0:
        return e.zero(i32x16)
    total = e.splat(e.load(i32, sums, at, 4))
    by = offset.bit_length() - (-SUMS[columns]).bit_length()
    if by == 0:
        return total
    return e.b.shl(total, e.constant(i32x16, by)) if by > 0 else e.b.ashr(total, e.constant(i32x16, -by))
