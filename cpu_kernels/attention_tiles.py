"""The micro-kernels of attention, and the layout of the scratch that they work in.

A state in the worker's scratch: weights [8 rows][64 positions], sums [8][16 lanes], then of 16 each: running maxima,
rescale factors, first and last visible positions (int32); q by tiles [head_dim][tile rows]; accumulators by tiles
[chunk of 16 elements][tile rows][16].
"""

from collections.abc import Callable

from llvmlite import ir

from .features import host_tier
from .layout import KV_BLOCK
from .simd import Emit, Value, f32, f32x16, i32, i32x16, i64, micro_kernel

STATE_ROWS, STRIDE = 8, 4  # rows of a state, KV blocks that share one step of the running softmax
ROW_BYTES = STRIDE * KV_BLOCK * 4  # a row's weights
SUMS = STATE_ROWS * ROW_BYTES
MAXIMA = SUMS + STATE_ROWS * 64
FACTORS, FIRST, LAST, STATE_Q = MAXIMA + 64, MAXIMA + 128, MAXIMA + 192, MAXIMA + 256
# at the start of the scratch, for each KV block of the stride: addresses of k and v, positions to read, and the
# addresses of k and v one stride later
PLACE, PLACES = 40, 192  # bytes of an entry, of all
UNSEEN = -1e30  # the score of what a row does not see; finite, so that differences of it are
# rows that share a vector of k: as many as the registers hold, two sums of scores for each
TILES = (8, 4, 1) if host_tier().registers >= 32 else (2, 1)
WIDEST = TILES[0]


def state_bytes(head_dim: int) -> int:
    """Bytes of one state."""
    return STATE_Q + STATE_ROWS * 4 * head_dim + -(-head_dim // 16) * STATE_ROWS * 64


def _for_each_tile(e: Emit, width: Value, half: Value, body: Callable[[int, bool], None]) -> None:
    """Emit body(rows of a tile, float16 cache) for each case and branch to the one that `width` and `half` name."""
    for rows in TILES:
        with (
            e.b.if_then(e.b.icmp_signed("==", width, e.const(rows))),
            e.b.if_else(e.b.icmp_signed("!=", half, e.const(0))) as (halves, floats),
        ):
            with halves:
                body(rows, True)
            with floats:
                body(rows, False)


def _load_cached(e: Emit, pointer: Value, offset: Value | int, half: bool) -> Value:
    return e.load_half(pointer, offset) if half else e.load(f32x16, pointer, offset)


@micro_kernel()
def score(e: Emit, q: Value, place: Value, head_dim: Value, width: Value, half: Value, weights: Value) -> None:
    """Scores of a tile's rows with the 16 keys of the block at `place`, to `weights` (a row every ROW_BYTES).

    Meanwhile asks for the keys and values of a stride later.
    """
    queries, entry, target = e.pointer(q), e.pointer(place), e.pointer(weights)
    source, *coming = (e.pointer(e.load(i64, entry, field, 8)) for field in (0, 24, 32))

    def tile(rows: int, is_half: bool) -> None:
        size = KV_BLOCK * (2 if is_half else 4)

        def two_elements(index: Value, sums: list[Value]) -> list[Value]:
            offset, at = e.b.mul(index, e.const(2 * size)), e.b.mul(index, e.const(8 * rows))
            for pointer in coming:
                for line in range(0, 2 * size, 64):
                    e.prefetch(e.at(pointer, line), offset)
            result = []
            for element in range(2):
                k = _load_cached(e, e.at(source, element * size), offset, is_half)
                for row in range(element * rows, (element + 1) * rows):
                    result.append(e.fma(e.splat(e.load(f32, e.at(queries, 4 * row), at, 4)), k, sums[row]))
            return result

        sums = e.loop(e.b.lshr(head_dim, e.const(1)), [e.zero()] * (2 * rows), two_elements)
        for row in range(rows):
            e.store(e.b.fadd(sums[row], sums[rows + row]), target, row * ROW_BYTES)

    _for_each_tile(e, width, half, tile)


@micro_kernel()
def soften(e: Emit, state: Value, rows: Value, weights: Value, position: Value, blocks: Value) -> None:
    """One step of the running softmax: scores at `weights` become exp(score - maximum); sums and factors follow.

    position: of the first lane of the first block.
    """
    base, scores = e.pointer(state), e.pointer(weights)
    lanes = ir.Constant(i32x16, list(range(KV_BLOCK)))
    unseen = e.constant(f32x16, UNSEEN)

    def row(index: Value, _: list[Value]) -> list[Value]:
        at = e.b.shl(index, e.const(2))
        first, last = (e.splat(e.load(i32, e.at(base, where), at, 4)) for where in (FIRST, LAST))
        before = e.splat(e.load(f32, e.at(base, MAXIMA), at, 4))
        line = e.at(scores, e.b.mul(index, e.const(ROW_BYTES)))

        def mask(block: Value, best: list[Value]) -> list[Value]:
            where = e.b.add(position, e.b.mul(block, e.const(KV_BLOCK)))
            place = e.b.add(e.splat(e.b.trunc(where, i32)), lanes)
            seen = e.b.and_(e.b.icmp_signed(">=", place, first), e.b.icmp_signed("<=", place, last))
            offset = e.b.shl(block, e.const(6))
            score = e.b.select(seen, e.load(f32x16, line, offset), unseen)
            e.store(score, line, offset)
            return [e.maximum(best[0], score)]

        top = e.max(e.loop(blocks, [before], mask)[0])
        tops = e.splat(top)
        factor = e.exp(e.b.fsub(before, tops))

        def weigh(block: Value, total: list[Value]) -> list[Value]:
            offset = e.b.shl(block, e.const(6))
            score = e.load(f32x16, line, offset)
            seen = e.b.fcmp_unordered("!=", score, unseen)
            weight = e.b.select(seen, e.exp(e.b.fsub(score, tops)), e.zero())
            e.store(weight, line, offset)
            return [e.b.fadd(total[0], weight)]

        sums = e.at(e.at(base, SUMS), e.b.shl(index, e.const(6)))
        (total,) = e.loop(blocks, [e.b.fmul(e.load(f32x16, sums), factor)], weigh)
        e.store(total, sums)
        e.store(top, e.at(base, MAXIMA), at, 4)
        e.store(e.b.extract_element(factor, ir.Constant(i32, 0)), e.at(base, FACTORS), at, 4)
        return []

    e.loop(rows, [], row)


@micro_kernel()
def add_values(
    e: Emit,
    accumulators: Value,
    weights: Value,
    factors: Value,
    places: Value,
    blocks: Value,
    head_dim: Value,
    width: Value,
    half: Value,
) -> None:
    """A tile's accumulators = accumulators * factor + weights @ values, over the stride's blocks."""
    target, chances, scales, table = (e.pointer(a) for a in (accumulators, weights, factors, places))

    def tile(rows: int, is_half: bool) -> None:
        def chunk(index: Value, load: Callable[[Value, Value], Value]) -> None:
            here = e.at(target, e.b.mul(index, e.const(64 * rows)))
            column = e.b.shl(index, e.const(5 if is_half else 6))

            def block(number: Value, sums: list[Value]) -> list[Value]:
                entry = e.at(table, e.b.mul(number, e.const(PLACE)))
                values = e.at(e.pointer(e.load(i64, entry, 8, 8)), column)
                line = e.at(chances, e.b.shl(number, e.const(6)))

                def position(place: Value, sums: list[Value]) -> list[Value]:
                    v = load(values, e.b.mul(place, e.b.shl(head_dim, e.const(1 if is_half else 2))))
                    at = e.b.shl(place, e.const(2))
                    each = [e.load(f32, e.at(line, row * ROW_BYTES), at, 4) for row in range(rows)]
                    return [e.fma(e.splat(p), v, acc) for p, acc in zip(each, sums, strict=True)]

                return e.loop(e.load(i64, entry, 16, 8), sums, position)

            factor = [e.splat(e.load(f32, scales, 4 * row, 4)) for row in range(rows)]
            start = [e.b.fmul(e.load(f32x16, here, 64 * row), factor[row]) for row in range(rows)]
            for row, total in enumerate(e.loop(blocks, start, block)):
                e.store(total, here, 64 * row)

        def whole(index: Value, _: list[Value]) -> list[Value]:
            chunk(index, lambda pointer, offset: _load_cached(e, pointer, offset, is_half))
            return []

        chunks = e.b.lshr(head_dim, e.const(4))
        e.loop(chunks, [], whole)
        with e.b.if_then(e.b.icmp_signed("!=", e.b.and_(head_dim, e.const(8)), e.const(0))):
            chunk(chunks, lambda pointer, offset: e.load_8(pointer, offset, is_half))

    _for_each_tile(e, width, half, tile)


@micro_kernel()
def finish_row(e: Emit, accumulators: Value, step: Value, sums: Value, out: Value, head_dim: Value) -> None:
    """out[head_dim] = accumulators (a chunk every `step` bytes) / sum of weights."""
    source, target = e.pointer(accumulators), e.pointer(out)
    total = e.splat(e.sum(e.load(f32x16, e.pointer(sums))))

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        left = e.b.sub(head_dim, e.b.shl(index, e.const(4)))
        value = e.b.fdiv(e.load(f32x16, source, e.b.mul(index, step)), total)
        e.store_some(value, target, e.b.shl(index, e.const(6)), left)
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4)), [], chunk)
