"""The micro-kernel of every matrix product: one weight tile (16 rows) times a few activation records.

For each row and token the order of operations is fixed: exact integer sums over a group of 32 columns, then one fused
multiply-add per group in column order (per column for float weights). So a result does not depend on how many tokens
share a call, nor on the register width.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ..layout import GROUP, KINDS, SPAN
from ..simd import Emit, Value, f32, f32x16, i8, i8x64, i32, i32x16, i64, micro_kernel

BLOCK = 8  # most activation records per call of a product
_VECTORS = GROUP // 4  # of 16 rows x 4 columns in a group

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
    body = _integer_span(kind) if KINDS[kind].quantised else _float_span(kind)
    span_bytes = KINDS[kind].span_bytes

    def span(s: Value, totals: list[Value]) -> list[Value]:
        here = e.at(tile, e.b.mul(s, e.const(span_bytes)))
        if tokens >= _BUSY:
            for line in range(0, span_bytes, 64):
                e.prefetch(here, _AHEAD + line)
        return body(e, here, records, s, spans, totals)

    for t, total in enumerate(e.loop(spans, [e.zero()] * tokens, span)):
        e.store(total, target, e.b.mul(out_stride, e.const(t)), 4)


_SpanBody = Callable[[Emit, Value, list[Value], Value, Value, list[Value]], list[Value]]


def _float_span(kind: str) -> _SpanBody:
    """64 columns of float weights times float32 activations."""
    step = KINDS[kind].span_bytes // SPAN

    def column(e: Emit, tile: Value, inputs: list[Value], totals: list[Value], c: int) -> list[Value]:
        load = {"f32": lambda p, o: e.load(f32x16, p, o, 4), "f16": e.load_half, "bf16": e.load_bfloat}[kind]
        rows = load(tile, c * step)
        return [e.fma(rows, e.splat(e.load(f32, x, 4 * c, 4)), t) for x, t in zip(inputs, totals, strict=True)]

    def body(e: Emit, tile: Value, records: list[Value], s: Value, _: Value, totals: list[Value]) -> list[Value]:
        def eight(i: Value, carried: list[Value]) -> list[Value]:
            here = e.at(tile, e.b.mul(i, e.const(8 * step)))
            first = e.b.add(e.b.mul(s, e.const(4 * SPAN)), e.b.mul(i, e.const(32)))
            inputs = [e.at(x, first) for x in records]
            for c in range(8):
                carried = column(e, here, inputs, carried, c)
            return carried

        return e.loop(e.const(SPAN // 8), totals, eight)

    return body


def _codes(e: Emit, kind: str, tile: Value, half: int, vector: int) -> Value:
    """Unsigned codes (16 rows x 4 columns) of one vector of a group."""
    if kind == "q8":
        return e.load(i8x64, tile, KINDS[kind].header + 512 * half + 64 * vector, 64)
    both = e.load(i8x64, tile, KINDS[kind].header + 256 * half + 64 * (vector // 2), 64)
    if vector % 2:
        return e.b.lshr(both, e.constant(i8x64, 4))
    return e.b.and_(both, e.constant(i8x64, 15))


def _integer_span(kind: str) -> _SpanBody:
    """Two groups of 32 columns: integer dot products, then scale (and minimum) by fused multiply-adds."""

    def group(e: Emit, tile: Value, records: list[Value], half: int, where: Value, totals: list[Value]) -> list[Value]:
        scales_at, sums_at, codes_at = where
        sums = [e.load(i32, x, sums_at, 4) for x in records]
        dots = _group_dots(e, kind, tile, [e.at(x, codes_at) for x in records], half, sums)
        weight_scale = e.load_half(tile, 32 * half)
        result = []
        for x, total, dot, code_sum in zip(records, totals, dots, sums, strict=True):
            scale = e.load(f32, x, scales_at, 4)
            total = e.fma(e.b.sitofp(dot, f32x16), e.b.fmul(weight_scale, e.splat(scale)), total)
            if kind == "q4m":
                level = e.b.fmul(scale, e.b.sitofp(code_sum, f32))
                total = e.fma(e.load_half(tile, 64 + 32 * half), e.splat(level), total)
            result.append(total)
        return result

    def body(e: Emit, tile: Value, records: list[Value], s: Value, spans: Value, totals: list[Value]) -> list[Value]:
        columns = e.b.mul(spans, e.const(SPAN))
        for half in range(2):
            column = e.b.add(e.b.mul(s, e.const(SPAN)), e.const(GROUP * half))
            scales_at = e.b.add(columns, e.b.lshr(column, e.const(3)))
            sums_at = e.b.add(scales_at, e.b.lshr(columns, e.const(3)))
            totals = group(e, tile, records, half, (scales_at, sums_at, column), totals)
        return totals

    return body


def _group_dots(e: Emit, kind: str, tile: Value, inputs: list[Value], half: int, sums: list[Value]) -> list[Value]:
    """Exact sums of signed weight times code over one group, per token."""
    if e.tier.maddubs:
        return _group_dots_avx2(e, kind, tile, inputs, half, sums)
    accs = [e.splat(e.b.mul(total, ir.Constant(i32, -KINDS[kind].offset))) for total in sums]
    for vector in range(_VECTORS):
        codes = _codes(e, kind, tile, half, vector)
        accs = [e.dot_u8s8(a, codes, e.load(i32, x, 4 * vector, 4)) for a, x in zip(accs, inputs, strict=True)]
    return accs


_i8x32, _i16x16, _i32x8 = ir.VectorType(i8, 32), ir.VectorType(ir.IntType(16), 16), ir.VectorType(i32, 8)


def _group_dots_avx2(e: Emit, kind: str, tile: Value, inputs: list[Value], half: int, sums: list[Value]) -> list[Value]:
    """As above by byte multiply-adds of 256 bits; 16-bit sums stay below 2^15 (8 x 2 x 15 x 127, or 2 x 128 x 127)."""
    correction = 0 if kind == "q8" else -KINDS[kind].offset  # 8-bit codes are made signed instead
    result = []
    for x, total in zip(inputs, sums, strict=True):
        sides = [_side_dot(e, kind, tile, x, half, side) for side in (0, 1)]
        dots = e.b.shuffle_vector(*sides, ir.Constant(i32x16, list(range(16))))
        result.append(e.b.add(dots, e.splat(e.b.mul(total, ir.Constant(i32, correction)))))
    return result


def _side_dot(e: Emit, kind: str, tile: Value, x: Value, half: int, side: int) -> Value:
    """Rows 8 * side .. 8 * side + 7: int32 sums over the group."""
    total: Value = None
    for vector in range(_VECTORS):
        codes = e.shuffle(_codes(e, kind, tile, half, vector), range(32 * side, 32 * side + 32))
        activations = e.b.bitcast(e.splat(e.load(i32, x, 4 * vector, 4), 8), _i8x32)
        if kind == "q8":
            codes = e.b.xor(codes, e.constant(_i8x32, 0x80))
            activations = e.call("llvm.x86.avx2.psign.b", _i8x32, [activations, codes])
            codes = e.call("llvm.abs.v32i8", _i8x32, [codes, ir.Constant(ir.IntType(1), 0)])
        product = e.call("llvm.x86.avx2.pmadd.ub.sw", _i16x16, [codes, activations])
        if kind == "q8":
            product = e.call("llvm.x86.avx2.pmadd.wd", _i32x8, [product, e.constant(_i16x16, 1)])
        total = product if total is None else e.b.add(total, product)
    if kind == "q8":
        return total
    return e.call("llvm.x86.avx2.pmadd.wd", _i32x8, [total, e.constant(_i16x16, 1)])
