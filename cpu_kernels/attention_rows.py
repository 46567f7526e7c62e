"""The rows that attention works on in a worker's scratch, and what does not depend on the kind of the cache.

Scratch: the places of a stride's KV blocks; scores [8 rows][64 positions], float32; codes of weights [8][64], int16;
then the rows, ROW bytes each, in groups of 8. A row begins with its *part*, what one segment of the context adds up
to: sums [16 lanes], a line with its running maximum and more, accumulators [head_dim]. Behind it are the query, as
floats or as codes, and the *total* of the segments so far, laid out like a part.
"""

from collections.abc import Callable

from llvmlite import ir

from .features import host_tier
from .kv_layout import CHUNK
from .layout import KV_BLOCK
from .simd import Emit, Value, f32, f32x16, i32, i32x16, i64, micro_kernel

MAX_HEAD_DIM = 512
GROUP_ROWS, STRIDE = 8, 4  # rows that share a vector of keys, KV blocks that share a step of the running softmax
STRIDE_POSITIONS = STRIDE * KV_BLOCK
# For each KV block of a stride: addresses of keys and values, positions to read, keys and values a stride later.
PLACE = 40
SCORES = 192  # behind the places
SCORES_ROW, CODES_ROW = STRIDE_POSITIONS * 4, STRIDE_POSITIONS * 2
CODES = SCORES + GROUP_ROWS * SCORES_ROW
ROWS = CODES + GROUP_ROWS * CODES_ROW
# In a part. OLD and NEW scale what is there and what a stride adds; FIRST and LAST bound what the row sees (int32).
MAXIMUM, QUERY_SCALE, FIRST, LAST, OLD, NEW = range(64, 88, 4)
PART_HEAD = 128  # bytes before the accumulators
QUERY = PART_HEAD + 4 * MAX_HEAD_DIM
TOTAL = QUERY + 4 * MAX_HEAD_DIM
ROW = TOTAL + PART_HEAD + 4 * MAX_HEAD_DIM + 64  # an odd number of lines, so that rows spread over the cache's sets
UNSEEN = -1e30  # the score of what a row does not see; finite, so that differences of it are

# rows that the registers hold, each with two sums of scores
TILES = (8, 4, 1) if host_tier().registers >= 32 else (2, 1)
WIDEST = TILES[0]


def part_bytes(head_dim: Value | int) -> Value:
    """Bytes of a part: multiples of 64."""
    return PART_HEAD + (head_dim + CHUNK - 1) // CHUNK * 64


def mask(e: Emit, record: Value, position: Value) -> list[Value]:
    """Which positions of a stride from `position` on a row sees: a vector of truth for each block."""
    first, last = (e.splat(e.load(i32, record, where, 4)) for where in (FIRST, LAST))
    seen = []
    for block in range(STRIDE):
        lanes = ir.Constant(i32x16, [block * KV_BLOCK + lane for lane in range(KV_BLOCK)])
        place = e.b.add(e.splat(e.b.trunc(position, i32)), lanes)
        seen.append(e.b.and_(e.b.icmp_signed(">=", place, first), e.b.icmp_signed("<=", place, last)))
    return seen


def soften_scores(e: Emit, record: Value, scores: list[Value], seen: list[Value] | None) -> list[Value]:
    """One step of a row's running softmax: the weights of four vectors of scores; maximum, sums and OLD follow.

    seen: from `mask`; None where the row sees the whole stride. What it does not see has weight 0.
    """
    if seen is not None:
        unseen = e.constant(f32x16, UNSEEN)
        scores = [e.b.select(there, score, unseen) for there, score in zip(seen, scores, strict=True)]
    before = e.splat(e.load(f32, record, MAXIMUM, 4))
    top = e.max(e.maximum(before, fold(scores, e.maximum)))
    tops = e.splat(top)
    old = e.exp(e.b.fsub(before, tops))
    weights = [e.exp(e.b.fsub(score, tops)) for score in scores]
    if seen is not None:
        weights = [e.b.select(there, weight, e.zero()) for there, weight in zip(seen, weights, strict=True)]
    e.store(e.fma(e.load(f32x16, record), old, fold(weights, e.b.fadd)), record)
    e.store(top, record, MAXIMUM, 4)
    e.store(e.b.extract_element(old, ir.Constant(i32, 0)), record, OLD, 4)
    return weights


def fold(values: list[Value], combine: Callable[[Value, Value], Value]) -> Value:
    """Combine four vectors by pairs."""
    a, b, c, d = values
    return combine(combine(a, b), combine(c, d))


def each_row(e: Emit, rows: Value, whole: Value, body: Callable[[Value, bool], None]) -> None:
    """body(row, whether it sees the whole stride) for each row, as `whole` says of all of them."""
    with e.b.if_else(e.b.icmp_signed("!=", whole, e.const(0))) as (yes, no):
        for branch, sees_all in ((yes, True), (no, False)):
            with branch:

                def one(index: Value, _: list[Value], sees_all: bool = sees_all) -> list[Value]:
                    body(index, sees_all)
                    return []

                e.loop(rows, [], one)


@micro_kernel()
def open_part(e: Emit, part: Value, chunks: Value) -> None:
    """Nothing seen yet."""
    base = e.pointer(part)
    e.store(e.zero(), base)
    e.store(ir.Constant(f32, UNSEEN), base, MAXIMUM, 4)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        e.store(e.zero(), e.at(base, PART_HEAD), e.b.shl(index, e.const(6)))
        return []

    e.loop(chunks, [], chunk)


@micro_kernel()
def merge_part(e: Emit, total: Value, part: Value, chunks: Value) -> None:
    """total += part, both brought to the larger maximum. With a total of nothing the part's bits stay."""
    to, source = e.pointer(total), e.pointer(part)
    tops = [e.splat(e.load(f32, pointer, MAXIMUM, 4)) for pointer in (to, source)]
    top = e.maximum(*tops)
    factors = [e.exp(e.b.fsub(one, top)) for one in tops]

    def add(offset: Value | int) -> None:
        theirs = e.b.fmul(e.load(f32x16, source, offset), factors[1])
        e.store(e.fma(e.load(f32x16, to, offset), factors[0], theirs), to, offset)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        add(e.b.add(e.b.shl(index, e.const(6)), e.const(PART_HEAD)))
        return []

    add(0)
    e.loop(chunks, [], chunk)
    e.store(e.b.extract_element(top, ir.Constant(i32, 0)), to, MAXIMUM, 4)


@micro_kernel()
def finish_row(e: Emit, total: Value, out: Value, head_dim: Value) -> None:
    """out[head_dim] = accumulators / sum of weights."""
    source, target = e.pointer(total), e.pointer(out)
    weight = e.splat(e.sum(e.load(f32x16, source)))

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        at = e.b.shl(index, e.const(6))
        left = e.b.sub(head_dim, e.b.shl(index, e.const(4)))
        e.store_some(e.b.fdiv(e.load(f32x16, e.at(source, PART_HEAD), at), weight), target, at, left)
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4)), [], chunk)


def place_of(e: Emit, entry: Value, field: int) -> Value:
    """A field of a block's place: 0 keys, 1 values, 2 positions, 3 and 4 keys and values a stride later."""
    return e.load(i64, entry, 8 * field, 8)
