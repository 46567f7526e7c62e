"""Attention's micro-kernels for caches of floats: products in float32."""

from llvmlite import ir

from .attention_rows import (
    LOG2_E,
    OLD,
    PART_HEAD,
    PLACE,
    QUERY,
    QUERY_SCALE,
    ROW,
    SCORES,
    SCORES_ROW,
    for_each_tile,
    later_part,
    place_of,
)
from .attention_softmax import score_line, soften
from .kv_layout import BF16, F16, F32
from .layout import KV_BLOCK
from .simd import Emit, Value, f32, f32x16, micro_kernel

_SIZES = {F32: 4, F16: 2, BF16: 2}


def _load(e: Emit, pointer: Value, offset: Value | int, kind: int) -> Value:
    """16 floats of the cache."""
    if kind == F32:
        return e.load(f32x16, pointer, offset)
    return e.load_half(pointer, offset) if kind == F16 else e.load_bfloat(pointer, offset)


@micro_kernel()
def open_floats(e: Emit, q: Value, row: Value, head_dim: Value) -> None:
    """The query of a row, with zeros to a whole chunk."""
    source, record = e.pointer(q), e.pointer(row)
    target = e.at(record, QUERY)
    e.store(ir.Constant(f32, LOG2_E), record, QUERY_SCALE, 4)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        at = e.b.shl(index, e.const(6))
        e.store(e.load_some(source, at, e.b.sub(head_dim, e.b.shl(index, e.const(4)))), target, at)
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4)), [], chunk)


@micro_kernel()
def score_floats(e: Emit, row: Value, place: Value, scores: Value, chunks: Value, width: Value, kind: Value) -> None:
    """Scores of a tile's rows with the 16 keys of the block at `place`, to `scores`.

    Meanwhile asks for what its place says of a stride later.
    """
    queries, entry, target = e.at(e.pointer(row), QUERY), e.pointer(place), e.pointer(scores)
    source, coming = (e.pointer(place_of(e, entry, field)) for field in (0, 4))

    def tile(rows: int, number: int) -> None:
        size = KV_BLOCK * _SIZES[number]

        def two_elements(index: Value, sums: list[Value]) -> list[Value]:
            offset, at = e.b.mul(index, e.const(2 * size)), e.b.shl(index, e.const(3))
            for line in range(0, 2 * size, 64):
                e.prefetch(e.at(coming, line), offset)
            result = []
            for element in range(2):
                k = _load(e, e.at(source, element * size), offset, number)
                for one in range(rows):
                    q = e.load(f32, e.at(queries, one * ROW + 4 * element), at, 4)
                    result.append(e.fma(e.splat(q), k, sums[element * rows + one]))
            return result

        sums = e.loop(e.b.shl(chunks, e.const(3)), [e.zero()] * (2 * rows), two_elements)
        for one in range(rows):
            e.store(e.b.fadd(sums[one], sums[rows + one]), target, one * SCORES_ROW)

    for_each_tile(e, width, kind, _SIZES, tile)


@micro_kernel()
def soften_floats(e: Emit, first_row: Value, scratch: Value, rows: Value, position: Value, whole: Value) -> None:
    """Scores of a group's rows become weights (see `soften`)."""
    base = e.pointer(scratch)

    def take(index: Value, weights: list[Value], _: list[Value] | None) -> None:
        for block, weight in enumerate(weights):
            e.store(weight, score_line(e, base, index), 64 * block)

    soften(e, first_row, base, rows, position, whole, take)


@micro_kernel()
def add_floats(
    e: Emit, row: Value, number: Value, scratch: Value, blocks: Value, chunks: Value, width: Value, kind: Value
) -> None:
    """Sums = sums * OLD + weights @ values, of the tile from row `number` of its group, over a stride.

    Meanwhile asks for more of a stride later.
    """
    records, table = e.pointer(row), e.pointer(scratch)
    chances = e.at(e.at(table, SCORES), e.b.mul(number, e.const(SCORES_ROW)))
    factors = e.at(e.at(table, OLD), e.b.shl(number, e.const(2)))

    def tile(rows: int, kind: int) -> None:
        size = _SIZES[kind]
        step = e.b.mul(chunks, e.const(KV_BLOCK * size))  # bytes of a position

        def chunk(index: Value, _: list[Value]) -> list[Value]:
            here = e.at(e.at(records, PART_HEAD), e.b.shl(index, e.const(6)))
            column = e.b.mul(index, e.const(KV_BLOCK * size))
            coming = later_part(e, table, chunks, index, KV_BLOCK * KV_BLOCK * size)

            def block(place: Value, sums: list[Value]) -> list[Value]:
                entry = e.at(table, e.b.mul(place, e.const(PLACE)))
                values = e.at(e.pointer(place_of(e, entry, 1)), column)
                line = e.at(chances, e.b.shl(place, e.const(6)))
                share = e.b.mul(place, e.const(KV_BLOCK * KV_BLOCK * size))
                for start in range(0, KV_BLOCK * KV_BLOCK * size, 64):
                    e.prefetch(e.at(coming, start), share)

                def position(lane: Value, sums: list[Value]) -> list[Value]:
                    v, at = _load(e, values, e.b.mul(lane, step), kind), e.b.shl(lane, e.const(2))
                    each = [e.load(f32, e.at(line, one * SCORES_ROW), at, 4) for one in range(rows)]
                    return [e.fma(e.splat(p), v, acc) for p, acc in zip(each, sums, strict=True)]

                return e.loop(place_of(e, entry, 2), sums, position)

            old = [e.splat(e.load(f32, factors, 4 * one, 4)) for one in range(rows)]
            start = [e.b.fmul(e.load(f32x16, here, ROW * one), old[one]) for one in range(rows)]
            for one, total in enumerate(e.loop(blocks, start, block)):
                e.store(total, here, ROW * one)
            return []

        e.loop(chunks, [], chunk)

    for_each_tile(e, width, kind, _SIZES, tile)
