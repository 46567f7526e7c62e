"""Attention's micro-kernels for caches of floats: products in float32."""

from collections.abc import Callable

from .attention_rows import (
    OLD,
    PART_HEAD,
    PLACE,
    QUERY,
    ROW,
    SCORES_ROW,
    STRIDE,
    TILES,
    each_row,
    mask,
    place_of,
    soften_scores,
)
from .kv_layout import BF16, F16, F32
from .layout import KV_BLOCK
from .simd import Emit, Value, f32, f32x16, micro_kernel

_SIZES = {F32: 4, F16: 2, BF16: 2}


def _for_each_tile(e: Emit, width: Value, kind: Value, body: Callable[[int, int], None]) -> None:
    """Emit body(rows of a tile, kind) for each case and branch to the one that `width` and `kind` name."""
    for number in _SIZES:
        for rows in TILES:
            is_width = e.b.icmp_signed("==", width, e.const(rows))
            with e.b.if_then(e.b.and_(is_width, e.b.icmp_signed("==", kind, e.const(number)))):
                body(rows, number)


def _load(e: Emit, pointer: Value, offset: Value | int, kind: int) -> Value:
    """16 floats of the cache."""
    if kind == F32:
        return e.load(f32x16, pointer, offset)
    return e.load_half(pointer, offset) if kind == F16 else e.load_bfloat(pointer, offset)


@micro_kernel()
def open_floats(e: Emit, q: Value, row: Value, head_dim: Value) -> None:
    """The query of a row, with zeros to a whole chunk."""
    source, target = e.pointer(q), e.at(e.pointer(row), QUERY)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        at = e.b.shl(index, e.const(6))
        e.store(e.load_some(source, at, e.b.sub(head_dim, e.b.shl(index, e.const(4)))), target, at)
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4)), [], chunk)


@micro_kernel()
def score_floats(e: Emit, row: Value, place: Value, scores: Value, chunks: Value, width: Value, kind: Value) -> None:
    """Scores of a tile's rows with the 16 keys of the block at `place`, to `scores`.

    Meanwhile asks for the keys and values of a stride later.
    """
    queries, entry, target = e.at(e.pointer(row), QUERY), e.pointer(place), e.pointer(scores)
    source, *coming = (e.pointer(place_of(e, entry, field)) for field in (0, 3, 4))

    def tile(rows: int, number: int) -> None:
        size = KV_BLOCK * _SIZES[number]

        def two_elements(index: Value, sums: list[Value]) -> list[Value]:
            offset, at = e.b.mul(index, e.const(2 * size)), e.b.shl(index, e.const(3))
            for pointer in coming:
                for line in range(0, 2 * size, 64):
                    e.prefetch(e.at(pointer, line), offset)
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

    _for_each_tile(e, width, kind, tile)


@micro_kernel()
def soften_floats(e: Emit, first_row: Value, rows: Value, scores: Value, position: Value, whole: Value) -> None:
    """Scores of rows become weights. position: of the stride's first lane; whole: whether all rows see all of it."""
    base, lines = e.pointer(first_row), e.pointer(scores)

    def row(index: Value, sees_all: bool) -> None:
        record = e.at(base, e.b.mul(index, e.const(ROW)))
        line = e.at(lines, e.b.mul(index, e.const(SCORES_ROW)))
        raw = [e.load(f32x16, line, 64 * block) for block in range(STRIDE)]
        seen = None if sees_all else mask(e, record, position)
        for block, weight in enumerate(soften_scores(e, record, raw, seen)):
            e.store(weight, line, 64 * block)

    each_row(e, rows, whole, row)


@micro_kernel()
def add_floats(
    e: Emit, row: Value, scores: Value, places: Value, blocks: Value, chunks: Value, width: Value, kind: Value
) -> None:
    """A tile's accumulators = accumulators * OLD + weights @ values, over the stride's blocks."""
    records, chances, table = e.pointer(row), e.pointer(scores), e.pointer(places)

    def tile(rows: int, number: int) -> None:
        size = _SIZES[number]
        step = e.b.mul(chunks, e.const(KV_BLOCK * size))  # bytes of a position

        def chunk(index: Value, _: list[Value]) -> list[Value]:
            here = e.at(e.at(records, PART_HEAD), e.b.shl(index, e.const(6)))
            column = e.b.mul(index, e.const(KV_BLOCK * size))

            def block(number_: Value, sums: list[Value]) -> list[Value]:
                entry = e.at(table, e.b.mul(number_, e.const(PLACE)))
                values = e.at(e.pointer(place_of(e, entry, 1)), column)
                line = e.at(chances, e.b.shl(number_, e.const(6)))

                def position(place: Value, sums: list[Value]) -> list[Value]:
                    v, at = _load(e, values, e.b.mul(place, step), number), e.b.shl(place, e.const(2))
                    each = [e.load(f32, e.at(line, one * SCORES_ROW), at, 4) for one in range(rows)]
                    return [e.fma(e.splat(p), v, acc) for p, acc in zip(each, sums, strict=True)]

                return e.loop(place_of(e, entry, 2), sums, position)

            old = [e.splat(e.load(f32, records, one * ROW + OLD, 4)) for one in range(rows)]
            start = [e.b.fmul(e.load(f32x16, here, ROW * one), old[one]) for one in range(rows)]
            for one, total in enumerate(e.loop(blocks, start, block)):
                e.store(total, here, ROW * one)
            return []

        e.loop(chunks, [], chunk)

    _for_each_tile(e, width, kind, tile)
