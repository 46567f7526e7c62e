"""The micro-kernel of matrix products with codes: one weight tile (16 rows) times a few activation records.

For each row and token the order of operations is fixed: exact integer sums over the columns of a scale, then one fused
multiply-add per scale in column order, and one per span of 64 for the records' scale (of 8-bit floats `eights` tells).
So a result does not depend on how many tokens share a call, nor on the register width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..features import Tier
from ..layout import GROUP, KINDS, SPAN, SUMS, Codes, Kind
from ..simd import Emit, Value, f32, f32x16, i32, i32x16, i64, micro_kernel
from .avx2 import dots_by_pairs
from .codes import Span, minima, parts, scales, span_at, unit_at, unsigned_codes
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
    layout, per_unit = KINDS[kind], e.const(KINDS[kind].spans)

    def unit(number: Value, totals: list[Value]) -> list[Value]:
        body = _integer_unit(e, layout.codes, tile, number, spans) if layout.codes else _eights_unit(e, tile)
        first = e.b.mul(number, per_unit)

        def span(n: Value, totals: list[Value]) -> list[Value]:
            s = e.b.add(first, n)
            if tokens >= _BUSY:
                _ask_ahead(e, layout, tile, s)
            return _by_few(e, body, n, s, records, totals)

        if layout.spans == 1:
            return span(e.const(0), totals)
        rest = e.b.sub(spans, first)
        return e.loop(e.b.select(e.b.icmp_signed("<", rest, per_unit), rest, per_unit), totals, span)

    units = e.b.udiv(e.b.add(spans, e.const(layout.spans - 1)), per_unit)
    for t, total in enumerate(e.loop(units, [e.zero()] * tokens, unit)):
        e.store(total, target, e.b.mul(out_stride, e.const(t)), 4)


def _ask_ahead(e: Emit, layout: Kind, tile: Value, s: Value) -> None:
    """Ask for as many bytes as a span has in its unit."""
    share = layout.unit_bytes // layout.spans
    here = e.at(tile, e.b.mul(s, e.const(share)))
    for line in range(0, share, 64):
        e.prefetch(here, _AHEAD + line)


_FewBody = Callable[[list[Value], list[Value]], list[Value]]  # (some records, their totals) -> totals
_Levels = tuple[Value, Value]  # scales and minima of 16 rows, None where a kind has none
# (number of a span in its unit, in the tile, whether records take turns) -> what multiplies the span by some of them
_SpanBody = Callable[[Value, Value, bool], _FewBody]


def _by_few(e: Emit, body: _SpanBody, n: Value, s: Value, records: list[Value], totals: list[Value]) -> list[Value]:
    """A span times all records, as many at a time as there are registers for."""
    at_once = len(records) if e.tier.registers >= 32 else _AT_ONCE
    few = body(n, s, len(records) > at_once)
    sums: list[Value] = []
    for first in range(0, len(records), at_once):
        if first:
            e.keep_order()  # else unpacked weights wait on the stack
        some = slice(first, first + at_once)
        sums += few(records[some], totals[some])
    return sums


def _eights_unit(e: Emit, tile: Value) -> _SpanBody:
    return lambda _, s, __: partial(eights_span, e, tile, s)


def _integer_unit(e: Emit, codes: Codes, tile: Value, number: Value, spans: Value) -> _SpanBody:
    # The upper scales are read once for the spans of a unit: read for each, they broke up the stream of lines, and a
    # single token had up to 11 % less of the memory's speed.
    unit = unit_at(e, codes, tile, number, 1 / SUMS[codes.columns])

    def body(n: Value, s: Value, in_turns: bool) -> _FewBody:
        span = span_at(e, codes, unit, n)
        # These take a while to compute, so they wait on the stack for the next turn.
        levels = [_levels(e, codes, span, place) for place in _places(codes)] if codes.parts and in_turns else None
        return partial(_integer_span, e, codes, span, levels, s, spans)

    return body


def _integer_span(
    e: Emit,
    codes: Codes,
    span: Span,
    levels: list[_Levels] | None,
    s: Value,
    spans: Value,
    records: list[Value],
    totals: list[Value],
) -> list[Value]:
    """Integer dot products, each times its weights' scale; their sum over the span times the record's scale."""
    columns, here = e.b.mul(spans, e.const(SPAN)), e.b.mul(s, e.const(SPAN))
    inputs = [e.at(x, here) for x in records]
    sums_at = _sums_at(e, codes, columns, here)
    sums = [e.at(x, sums_at) for x in records]
    values = [e.zero()] * len(records)
    for place in _places(codes):
        if codes.columns < GROUP or codes.minima or codes.parts:
            e.keep_order()  # else loads are moved up, and registers run out
        scale, minimum = levels[place] if levels else (scales(e, codes, span, place), None)
        products = zip(_dots(e, codes, span.planes, inputs, place, sums), values, strict=True)
        values = [e.b.fmul(dot, scale) if place == 0 else e.fma(dot, scale, v) for dot, v in products]
        if codes.minima:
            if minimum is None:
                minimum = minima(e, codes, span, place)
            values = [e.fma(minimum, _as_floats(e, x, 4 * place), v) for x, v in zip(sums, values, strict=True)]
    scales_at = e.b.add(columns, e.b.lshr(here, e.const(4)))
    factors = [e.splat(e.load(f32, x, scales_at, 4)) for x in records]
    return [e.fma(v, factor, total) for v, factor, total in zip(values, factors, totals, strict=True)]


def _levels(e: Emit, codes: Codes, span: Span, place: int) -> _Levels:
    return scales(e, codes, span, place), minima(e, codes, span, place) if codes.minima else None


def _places(codes: Codes) -> range:
    """Of the scales of a span."""
    return range(SPAN // codes.columns)


def _as_floats(e: Emit, sums: Value, at: int) -> Value:
    """A sum of codes in every lane."""
    return e.b.sitofp(e.splat(e.load(i32, sums, at, 4)), f32x16)


def _sums_at(e: Emit, codes: Codes, columns: Value, here: Value) -> Value:
    """Where in a record the sums lie that a kind with such scales reads, of the span from column `here` on."""
    first = e.b.add(columns, e.b.lshr(columns, e.const(4)))
    if codes.columns == GROUP:
        return e.b.add(first, e.b.lshr(here, e.const(3)))
    return e.b.add(e.b.add(first, e.b.lshr(columns, e.const(3))), e.b.lshr(here, e.const(2)))


def _dots(e: Emit, codes: Codes, planes: Value, inputs: list[Value], place: int, sums: list[Value]) -> list[Value]:
    """Per token, exact sums of weight (in units of its scale) times code over the columns of one scale, as floats."""
    half, part = divmod(place, parts(codes))
    inputs = [e.at(x, GROUP * half) for x in inputs]
    blocks = [(half, codes.columns // 4 * part + i) for i in range(codes.columns // 4)]
    accs = [_correction(e, codes.columns, codes.offset, x, 4 * place) for x in sums]
    if e.tier.avx2 and not e.tier.vnni:
        return [e.b.sitofp(dot, f32x16) for dot in dots_by_pairs(e, codes, planes, inputs, blocks, accs)]
    for _, block in blocks:
        weights = unsigned_codes(e, codes, planes, half, block)
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
