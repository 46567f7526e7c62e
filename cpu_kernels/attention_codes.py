"""Attention's micro-kernels for caches of codes: products of 16-bit integers, which are exact in any order.

A query is rounded to codes as wide as those of a 16-bit cache. Its products with a group of a key's codes are summed as
integers, then scaled. Weights times the scales of their values are rounded to codes relative to the largest of a
row's stride, so that a row with a few large weights far away does not round the others off.
"""

from collections.abc import Callable

from llvmlite import ir

from .attention_rows import (
    CODES,
    CODES_ROW,
    INVERSE,
    LINE,
    LINES,
    LOG2_E,
    NEW,
    OLD,
    PART_HEAD,
    PLACE,
    QUERY,
    QUERY_SCALE,
    ROW,
    SCORES_ROW,
    STRIDE,
    ask_for_line,
    for_each_tile,
    later_part,
    place_of,
)
from .attention_softmax import fold, fold_lines, for_each_16, number_of, score_line, soften
from .kv_layout import CODE_LIMIT, INT8, INT16
from .kv_write import codes_at, larger, magnitude_bits
from .layout import KV_BLOCK
from .simd import Emit, Value, f32, f32x16, i8, i16x16, i32, i32x16, micro_kernel

i16x32 = ir.VectorType(ir.IntType(16), 32)
_i16x16, _i32x8 = ir.VectorType(ir.IntType(16), 16), ir.VectorType(i32, 8)
_SIZES = {INT16: 2, INT8: 1}
_WEIGHT_LIMIT = 2 * CODE_LIMIT + 1  # 16 products of it and a value's code fit into 32 bits
_INFINITY = 0x7F800000


def dot_pairs(e: Emit, acc: Value, pairs: Value, pair: Value) -> Value:
    """acc[lane] += the products of two 16-bit integers, of 16 lanes of `pairs` and the i32 `pair`."""
    if e.tier.vnni == 512:
        return e.call("llvm.x86.avx512.vpdpwssd.512", i32x16, [acc, pairs, e.splat(pair)])
    if e.tier.avx2:
        halves = [_add_half(e, acc, pairs, e.splat(pair, 8), range(8 * side, 8 * side + 8)) for side in (0, 1)]
        return e.b.shuffle_vector(*halves, ir.Constant(i32x16, list(range(16))))
    both, shift = (pairs, e.splat(pair)), e.constant(i32x16, 16)
    low = [e.b.ashr(e.b.shl(one, shift), shift) for one in both]
    high = [e.b.ashr(one, shift) for one in both]
    return e.b.add(e.b.add(acc, e.b.mul(*low)), e.b.mul(*high))


def _add_half(e: Emit, acc: Value, pairs: Value, pair: Value, lanes: range) -> Value:
    """As above for 8 of the lanes."""
    total, half = e.shuffle(acc, lanes), e.shuffle(pairs, lanes)
    if e.tier.vnni:
        return e.call("llvm.x86.avx512.vpdpwssd.256", _i32x8, [total, half, pair])
    products = [e.b.bitcast(value, _i16x16) for value in (half, pair)]
    return e.b.add(total, e.call("llvm.x86.avx2.pmadd.wd", _i32x8, products))


def _load(e: Emit, pointer: Value, offset: Value | int, kind: int) -> Value:
    """16 pairs of codes of the cache, as 16-bit integers."""
    if kind == INT16:
        return e.load(i32x16, pointer, offset)
    return e.b.bitcast(e.b.sext(e.load(ir.VectorType(i8, 32), pointer, offset), i16x32), i32x16)


def _low_words(e: Emit, a: Value, b: Value) -> Value:
    """The lower 16 bits of the lanes of two i32x16, side by side."""
    words = [e.b.bitcast(one, i16x32) for one in (a, b)]
    return e.b.shuffle_vector(*words, ir.Constant(ir.VectorType(i32, 32), list(range(0, 64, 2))))


def _scaling(e: Emit, largest: Value, limit: int) -> tuple[Value, Value]:
    """From the bits of the largest magnitudes in each lane: scales, NaN for what is not finite, and 1 / scale."""
    magnitude = e.b.bitcast(largest, f32x16)
    some = e.b.fcmp_ordered(">", magnitude, e.constant(f32x16, 2.0**-100))
    wild = e.b.icmp_signed(">=", largest, e.constant(i32x16, _INFINITY))
    scale = e.b.fmul(magnitude, e.constant(f32x16, 1 / limit))
    scale = e.b.select(wild, e.constant(f32x16, float("nan")), scale)
    return scale, e.b.select(some, e.b.fdiv(e.constant(f32x16, float(limit)), magnitude), e.zero())


@micro_kernel()
def open_codes(e: Emit, q: Value, row: Value, head_dim: Value) -> None:
    """The query of a row as codes, with zeros to a whole chunk, and its scale."""
    source, record = e.pointer(q), e.pointer(row)
    chunks = e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4))

    def load(index: Value) -> Value:
        return e.load_some(source, e.b.shl(index, e.const(6)), e.b.sub(head_dim, e.b.shl(index, e.const(4))))

    (largest,) = e.loop(chunks, [e.zero(i32x16)], lambda i, top: [larger(e, top[0], magnitude_bits(e, load(i)))])
    scale, inverse = _scaling(e, e.splat(e.reduce(largest, lambda a, b: larger(e, a, b))), CODE_LIMIT)
    first = e.b.extract_element(e.b.fmul(scale, e.constant(f32x16, LOG2_E)), ir.Constant(i32, 0))
    e.store(first, record, QUERY_SCALE, 4)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        codes = e.b.trunc(codes_at(e, load(index), inverse), i16x16)
        e.store(codes, e.at(record, QUERY), e.b.shl(index, e.const(5)))
        return []

    e.loop(chunks, [], chunk)


@micro_kernel()
def score_codes(e: Emit, row: Value, place: Value, scores: Value, chunks: Value, width: Value, kind: Value) -> None:
    """Scores of a tile's rows with the 16 keys of the block at `place`, to `scores`, but for the query's scale.

    Meanwhile asks for what its place says of a stride later.
    """
    queries, entry, target = e.at(e.pointer(row), QUERY), e.pointer(place), e.pointer(scores)
    source, coming = (e.pointer(place_of(e, entry, field)) for field in (0, 4))

    def tile(rows: int, number: int) -> None:
        line, size = 2 * KV_BLOCK * _SIZES[number], 8 * 2 * KV_BLOCK * _SIZES[number]  # bytes of a pair, of a chunk
        scales = e.at(source, e.b.mul(chunks, e.const(size)))

        def chunk(index: Value, sums: list[Value]) -> list[Value]:
            at, offset = e.b.shl(index, e.const(5)), e.b.mul(index, e.const(size))
            for start in range(0, size, 64):
                e.prefetch(e.at(coming, start), offset)
            for pair in range(8):
                k = _load(e, e.at(source, pair * line), offset, number)
                q = [e.load(i32, e.at(queries, one * ROW + 4 * pair), at, 4) for one in range(rows)]
                sums = [dot_pairs(e, acc, k, one) for acc, one in zip(sums, q, strict=True)]
            return sums

        def group(index: Value, totals: list[Value]) -> list[Value]:
            first = e.b.shl(index, e.const(1))
            left = e.b.sub(chunks, first)
            count = e.b.select(e.b.icmp_signed("<", left, e.const(2)), left, e.const(2))
            start = [e.zero(i32x16)] * rows
            sums = e.loop(count, start, lambda i, carried: chunk(e.b.add(first, i), carried))
            scale = e.load_bfloat(scales, e.b.shl(index, e.const(5)))
            return [e.fma(e.b.sitofp(one, f32x16), scale, all_) for one, all_ in zip(sums, totals, strict=True)]

        groups = e.b.lshr(e.b.add(chunks, e.const(1)), e.const(1))
        for one, total in enumerate(e.loop(groups, [e.zero()] * rows, group)):
            e.store(total, target, one * SCORES_ROW)
        behind = e.at(coming, e.b.mul(chunks, e.const(size)))  # of keys, the scales
        e.loop(e.b.lshr(e.b.add(groups, e.const(1)), e.const(1)), [], lambda i, _: ask_for_line(e, behind, i))

    for_each_tile(e, width, kind, _SIZES, tile)


@micro_kernel()
def soften_codes(
    e: Emit, first_row: Value, scratch: Value, rows: Value, scales_at: Value, position: Value, whole: Value
) -> None:
    """Scores of a group's rows become codes of weights (see `soften`). scales_at: bytes from values to their scales."""
    base = e.pointer(scratch)
    values = [e.pointer(place_of(e, e.at(base, PLACE * block), 1)) for block in range(STRIDE)]
    scales = [e.load_bfloat(pointer, scales_at) for pointer in values]

    def take(index: Value, weights: list[Value], seen: list[Value] | None) -> None:
        scaled = [e.b.fmul(weight, scale) for weight, scale in zip(weights, scales, strict=True)]
        if seen is not None:  # a scale there may be anything
            scaled = [e.b.select(there, one, e.zero()) for there, one in zip(seen, scaled, strict=True)]
        # none is below 0, but a NaN that the sum of weights holds too
        largest = fold([e.b.bitcast(one, i32x16) for one in scaled], lambda a, b: larger(e, a, b))
        e.store(largest, e.at(base, LINES), e.b.mul(index, e.const(LINE)))
        for block, one in enumerate(scaled):
            e.store(one, score_line(e, base, index), 64 * block)

    def find_scales(lines: Value, at: Callable[[int], Value]) -> None:
        largest = fold_lines(e, lines, i32x16, lambda a, b: larger(e, a, b))
        for value, where in zip(_scaling(e, largest, _WEIGHT_LIMIT), (NEW, INVERSE), strict=True):
            e.store(value, at(where))

    def round_off(index: Value, _: list[Value]) -> list[Value]:
        line, inverse = score_line(e, base, index), number_of(e, base, INVERSE, index)
        target = e.at(e.at(base, CODES), e.b.mul(index, e.const(CODES_ROW)))
        for block in range(0, STRIDE, 2):
            pair = [codes_at(e, e.load(f32x16, line, 64 * (block + one)), inverse) for one in range(2)]
            e.store(_low_words(e, *pair), target, 32 * block)
        return []

    soften(e, first_row, base, rows, position, whole, take)
    for_each_16(e, base, rows, find_scales)
    e.loop(rows, [], round_off)


@micro_kernel()
def add_codes(
    e: Emit, row: Value, number: Value, scratch: Value, blocks: Value, chunks: Value, width: Value, kind: Value
) -> None:
    """Sums = sums * OLD + weights @ values * NEW, of the tile from row `number` of its group, over a stride.

    Meanwhile asks for more of a stride later.
    """
    records, table = e.pointer(row), e.pointer(scratch)
    chances = e.at(e.at(table, CODES), e.b.mul(number, e.const(CODES_ROW)))
    factors = e.at(table, e.b.shl(number, e.const(2)))

    def tile(rows: int, kind: int) -> None:
        line, size = 2 * KV_BLOCK * _SIZES[kind], 8 * 2 * KV_BLOCK * _SIZES[kind]  # bytes of a pair, of a chunk

        def chunk(index: Value, _: list[Value]) -> list[Value]:
            here = e.at(e.at(records, PART_HEAD), e.b.shl(index, e.const(6)))
            column, coming = e.b.mul(index, e.const(size)), later_part(e, table, chunks, index, size)

            def block(place: Value, totals: list[Value]) -> list[Value]:
                entry = e.at(table, e.b.mul(place, e.const(PLACE)))
                values, share = e.pointer(place_of(e, entry, 1)), e.b.mul(place, e.const(size))
                at = e.b.shl(place, e.const(5))
                for start in range(0, size, 64):
                    e.prefetch(e.at(coming, start), share)
                sums = [e.zero(i32x16)] * rows
                for pair in range(8):
                    v = _load(e, e.at(values, pair * line), column, kind)
                    p = [e.load(i32, e.at(chances, one * CODES_ROW + 4 * pair), at, 4) for one in range(rows)]
                    sums = [dot_pairs(e, acc, v, one) for acc, one in zip(sums, p, strict=True)]
                return [e.b.fadd(all_, e.b.sitofp(one, f32x16)) for one, all_ in zip(sums, totals, strict=True)]

            for one, total in enumerate(e.loop(blocks, [e.zero()] * rows, block)):
                old, new = (e.splat(e.load(f32, factors, field + 4 * one, 4)) for field in (OLD, NEW))
                kept = e.b.fmul(e.load(f32x16, here, ROW * one), old)
                e.store(e.fma(total, new, kept), here, ROW * one)
            e.prefetch(coming, STRIDE * size)
            return []

        e.loop(chunks, [], chunk)

    for_each_tile(e, width, kind, _SIZES, tile)
