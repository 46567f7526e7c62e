"""The rows that attention works on in a worker's scratch, and what does not depend on the kind of the cache.

Scratch: the places of a stride's KV blocks; scores [8 rows][64 positions], float32; codes of weights [8][64], int16;
then the rows, ROW bytes each, in groups of 8. A row begins with its *part*, what one segment of the context adds up
to: sums [16 lanes], a line with its running maximum and more, accumulators [head_dim]. Behind it are the query, as
floats or as codes, and the *total* of the segments so far, laid out like a part.
"""

from collections.abc import Callable, Iterable

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
# Of 16 each, by row of a group: maxima before and after a stride, what scales the accumulators and what a stride adds,
# and what makes codes of weights.
BEFORE, TOPS, OLD, NEW, INVERSE = (CODES + GROUP_ROWS * CODES_ROW + 64 * line for line in range(5))
ROWS = INVERSE + 64
# In a part. Scores times QUERY_SCALE are exponents of 2; FIRST and LAST bound what the row sees (int32).
MAXIMUM, QUERY_SCALE, FIRST, LAST = range(64, 80, 4)
PART_HEAD = 128  # bytes before the accumulators
QUERY = PART_HEAD + 4 * MAX_HEAD_DIM
TOTAL = QUERY + 4 * MAX_HEAD_DIM
ROW = TOTAL + PART_HEAD + 4 * MAX_HEAD_DIM + 64  # an odd number of lines, so that rows spread over the cache's sets
LOG2_E = 1.4426950408889634
_EXP2 = (0.0013264738, 0.009671513, 0.055507337, 0.24022242, 0.69314698, 1.0)  # of 2^x - 1 within 1e-7 on -0.5 .. 0.5
UNSEEN = -1e30  # the score of what a row does not see; finite, so that differences of it are

# rows that the registers hold, each with two sums of scores
TILES = (8, 4, 1) if host_tier().registers >= 32 else (2, 1)
WIDEST = TILES[0]


def part_bytes(head_dim: Value | int) -> Value:
    """Bytes of a part: multiples of 64."""
    return PART_HEAD + (head_dim + CHUNK - 1) // CHUNK * 64


def for_each_tile(e: Emit, width: Value, kind: Value, kinds: Iterable[int], body: Callable[[int, int], None]) -> None:
    """Emit body(rows of a tile, kind) for each case and branch to the one that `width` and `kind` name."""
    for number in kinds:
        for rows in TILES:
            is_width = e.b.icmp_signed("==", width, e.const(rows))
            with e.b.if_then(e.b.and_(is_width, e.b.icmp_signed("==", kind, e.const(number)))):
                body(rows, number)


def mask(e: Emit, record: Value, position: Value) -> list[Value]:
    """Which positions of a stride from `position` on a row sees: a vector of truth for each block."""
    first, last = (e.splat(e.load(i32, record, where, 4)) for where in (FIRST, LAST))
    seen = []
    for block in range(STRIDE):
        lanes = ir.Constant(i32x16, [block * KV_BLOCK + lane for lane in range(KV_BLOCK)])
        place = e.b.add(e.splat(e.b.trunc(position, i32)), lanes)
        seen.append(e.b.and_(e.b.icmp_signed(">=", place, first), e.b.icmp_signed("<=", place, last)))
    return seen


def exp2(e: Emit, x: Value) -> Value:
    """2^x of f32x16, x up to about 0, within 3 ulp; some 2^-125 below -125, and NaN of NaN."""
    magic = e.constant(f32x16, 1.5 * 2.0**23)  # a sum with it is rounded to an integer, which its low bits hold
    x = e.maximum(e.constant(f32x16, -125.0), x)
    shifted = e.b.fadd(x, magic)
    part = e.b.fsub(x, e.b.fsub(shifted, magic))
    y = e.constant(f32x16, _EXP2[0])
    for coefficient in _EXP2[1:]:
        y = e.fma(y, part, e.constant(f32x16, coefficient))
    exponent = e.b.shl(e.b.bitcast(shifted, i32x16), e.constant(i32x16, 23))
    return e.b.bitcast(e.b.add(e.b.bitcast(y, i32x16), exponent), f32x16)


def fold(values: list[Value], combine: Callable[[Value, Value], Value]) -> Value:
    """Combine four vectors by pairs."""
    a, b, c, d = values
    return combine(combine(a, b), combine(c, d))


def soften(
    e: Emit,
    first_row: Value,
    scratch: Value,
    rows: Value,
    position: Value,
    whole: Value,
    take: Callable[[Value, list[Value], list[Value] | None], None],
) -> None:
    """One step of the running softmax of a group's rows, from the scores in `scratch`.

    position: of the stride's first lane. whole: whether all rows see the whole stride. take(index of a row, its four
    vectors of weights, the lanes that it sees or None for all); what a row does not see has weight 0.
    """
    base = e.pointer(first_row)

    def place(index: Value, sees_all: bool) -> tuple[Value, list[Value], Value, list[Value] | None]:
        record = e.at(base, e.b.mul(index, e.const(ROW)))
        line = e.at(e.at(scratch, SCORES), e.b.mul(index, e.const(SCORES_ROW)))
        scores = [e.load(f32x16, line, 64 * block) for block in range(STRIDE)]
        scale = e.splat(e.load(f32, record, QUERY_SCALE, 4))
        return record, scores, scale, None if sees_all else mask(e, record, position)

    def find_top(index: Value, sees_all: bool) -> None:
        record, scores, scale, seen = place(index, sees_all)
        scores = [e.b.fmul(score, scale) for score in scores]
        if seen is not None:
            unseen = e.constant(f32x16, UNSEEN)
            scores = [e.b.select(there, score, unseen) for there, score in zip(seen, scores, strict=True)]
        before, at = e.load(f32, record, MAXIMUM, 4), e.b.shl(index, e.const(2))
        top = e.max(fold(scores, e.maximum))
        top = e.b.select(e.b.fcmp_ordered(">", before, top), before, top)
        e.store(before, e.at(scratch, BEFORE), at, 4)
        e.store(top, e.at(scratch, TOPS), at, 4)
        e.store(top, record, MAXIMUM, 4)

    def weigh(index: Value, sees_all: bool) -> None:
        record, scores, scale, seen = place(index, sees_all)
        at = e.b.shl(index, e.const(2))
        top, old = (e.splat(e.load(f32, e.at(scratch, where), at, 4)) for where in (TOPS, OLD))
        weights = [exp2(e, e.fma(score, scale, e.b.fneg(top))) for score in scores]
        if seen is not None:
            weights = [e.b.select(there, weight, e.zero()) for there, weight in zip(seen, weights, strict=True)]
        e.store(e.fma(e.load(f32x16, record), old, fold(weights, e.b.fadd)), record)
        take(index, weights, seen)

    _each_row(e, rows, whole, find_top)
    # of all rows at once; lanes of no row hold anything
    e.store(exp2(e, e.b.fsub(e.load(f32x16, scratch, BEFORE), e.load(f32x16, scratch, TOPS))), scratch, OLD)
    _each_row(e, rows, whole, weigh)


def _each_row(e: Emit, rows: Value, whole: Value, body: Callable[[Value, bool], None]) -> None:
    """body(index, whether it sees the whole stride) for each row, as `whole` says of all of them."""
    with e.b.if_else(e.b.icmp_signed("!=", whole, e.const(0))) as (yes, no):
        for branch, sees_all in ((yes, True), (no, False)):
            with branch:

                def one(index: Value, _: list[Value], sees_all: bool = sees_all) -> list[Value]:
                    body(index, sees_all)
                    return []

                e.loop(rows, [], one)


@micro_kernel()
def ask_for(e: Emit, address: Value, size: Value) -> None:
    """Prefetch `size` bytes, whole lines."""
    base = e.pointer(address)

    def line(index: Value, _: list[Value]) -> list[Value]:
        e.prefetch(base, e.b.shl(index, e.const(6)))
        return []

    e.loop(e.b.lshr(size, e.const(6)), [], line)


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
    factors = [exp2(e, e.b.fsub(one, top)) for one in tops]

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
    share = e.splat(e.b.fdiv(ir.Constant(f32, 1.0), e.sum(e.load(f32x16, source))))

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        at = e.b.shl(index, e.const(6))
        left = e.b.sub(head_dim, e.b.shl(index, e.const(4)))
        e.store_some(e.b.fmul(e.load(f32x16, e.at(source, PART_HEAD), at), share), target, at, left)
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4)), [], chunk)


def place_of(e: Emit, entry: Value, field: int) -> Value:
    """A field of a block's place: 0 keys, 1 values, 2 positions, 3 and 4 keys and values a stride later."""
    return e.load(i64, entry, 8 * field, 8)
