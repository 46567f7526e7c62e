"""The running softmax of a group of rows, one stride of the context after the other."""

from collections.abc import Callable

from llvmlite import ir

from .attention_rows import FIRST, LAST, LINE, LINES, OLD, ROW, SCALES, SCORES, SCORES_ROW, STRIDE, TOPS
from .layout import KV_BLOCK
from .simd import LANES, Emit, Value, f32, f32x16, i32, i32x16

_EXP2 = (0.0013264738, 0.009671513, 0.055507337, 0.24022242, 0.69314698, 1.0)  # of 2^x - 1 within 1e-7 on -0.5 .. 0.5
Fold = Callable[[Value, Value], Value]


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


def fold(values: list[Value], combine: Fold) -> Value:
    """Combine four vectors by pairs."""
    a, b, c, d = values
    return combine(combine(a, b), combine(c, d))


def fold_lines(e: Emit, lines: Value, kind: ir.VectorType, combine: Fold) -> Value:
    """Each of 16 lines folded to one lane. `combine` must give the same in any order.

    Two lines that are folded side by side take three instructions for a step, where one alone takes two.
    """
    # such that the last step leaves line i in lane i
    vectors = [e.load(kind, lines, LINE * (leaf // 4 + 4 * (leaf % 4))) for leaf in range(LANES)]
    for width in (8, 4, 2, 1):
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [combine(*(e.b.shuffle_vector(a, b, side) for side in _sides(width))) for a, b in pairs]
    return vectors[0]


def _sides(width: int) -> list[Value]:
    """Of two vectors in which 2 * width lanes belong together, the lower and the upper halves of those."""
    if width > 2:  # lanes of 128 bits change places
        low = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
    else:  # within 128 bits: first those of one vector, then those of the other
        low = [LANES * (lane // 2 % 2) + lane // 4 * 4 + lane % 2 * (3 - width) for lane in range(LANES)]
    return [ir.Constant(i32x16, [lane + side * width for lane in low]) for side in (0, 1)]


def mask(e: Emit, record: Value, position: Value) -> list[Value]:
    """Which positions of a stride from `position` on a row sees: a vector of truth for each block."""
    first, last = (e.load(i32, record, where, 4) for where in (FIRST, LAST))
    start, length = e.splat(e.b.sub(e.b.trunc(position, i32), first)), e.splat(e.b.sub(last, first))
    seen = []
    for block in range(STRIDE):
        lanes = ir.Constant(i32x16, [block * KV_BLOCK + lane for lane in range(KV_BLOCK)])
        seen.append(e.b.icmp_unsigned("<=", e.b.add(start, lanes), length))  # what is before the first wraps around
    return seen


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

    def scores_of(index: Value) -> list[Value]:
        return [e.load(f32x16, score_line(e, scratch, index), 64 * block) for block in range(STRIDE)]

    def seen_by(index: Value, sees_all: bool) -> list[Value] | None:
        return None if sees_all else mask(e, e.at(base, e.b.mul(index, e.const(ROW))), position)

    def find_top(index: Value, sees_all: bool) -> None:
        scores, seen = scores_of(index), seen_by(index, sees_all)
        if seen is not None:
            nothing = e.constant(f32x16, float("-inf"))
            scores = [e.b.select(there, score, nothing) for there, score in zip(seen, scores, strict=True)]
        e.store(fold(scores, e.maximum), e.at(scratch, LINES), e.b.mul(index, e.const(LINE)))

    def weigh(index: Value, sees_all: bool) -> None:
        record, seen = e.at(base, e.b.mul(index, e.const(ROW))), seen_by(index, sees_all)
        scale, top, old = (number_of(e, scratch, where, index) for where in (SCALES, TOPS, OLD))
        weights = [exp2(e, e.fma(score, scale, e.b.fneg(top))) for score in scores_of(index)]
        if seen is not None:
            weights = [e.b.select(there, weight, e.zero()) for there, weight in zip(seen, weights, strict=True)]
        e.store(e.fma(e.load(f32x16, record), old, fold(weights, e.b.fadd)), record)
        take(index, weights, seen)

    def raise_tops(lines: Value, at: Callable[[int], Value]) -> None:
        # a row that sees nothing here keeps its maximum
        before, highest = e.load(f32x16, at(TOPS)), fold_lines(e, lines, f32x16, e.maximum)
        top = e.maximum(e.b.fmul(highest, e.load(f32x16, at(SCALES))), before)
        e.store(top, at(TOPS))
        e.store(exp2(e, e.b.fsub(before, top)), at(OLD))

    _each_row(e, rows, whole, find_top)
    for_each_16(e, scratch, rows, raise_tops)
    _each_row(e, rows, whole, weigh)


def score_line(e: Emit, scratch: Value, index: Value) -> Value:
    """Where the scores of a row of the group lie."""
    return e.at(e.at(scratch, SCORES), e.b.mul(index, e.const(SCORES_ROW)))


def number_of(e: Emit, scratch: Value, where: int, index: Value) -> Value:
    """One of the numbers of a row of the group, in all lanes."""
    return e.splat(e.load(f32, e.at(scratch, where), e.b.shl(index, e.const(2)), 4))


def for_each_16(e: Emit, scratch: Value, rows: Value, body: Callable[[Value, Callable[[int], Value]], None]) -> None:
    """body(lines of 16 rows, where one of their numbers lies) until all rows had their turn; some may be of none."""

    def sixteen(index: Value, _: list[Value]) -> list[Value]:
        number = e.b.mul(index, e.const(4 * LANES))
        lines = e.at(e.at(scratch, LINES), e.b.mul(index, e.const(LANES * LINE)))
        body(lines, lambda where: e.at(e.at(scratch, where), number))
        return []

    e.loop(e.b.lshr(e.b.add(rows, e.const(LANES - 1)), e.const(4)), [], sixteen)


def _each_row(e: Emit, rows: Value, whole: Value, body: Callable[[Value, bool], None]) -> None:
    """body(index, whether it sees the whole stride) for each row, as `whole` says of all of them."""
    with e.b.if_else(e.b.icmp_signed("!=", whole, e.const(0))) as (yes, no):
        for branch, sees_all in ((yes, True), (no, False)):
            with branch:

                def one(index: Value, _: list[Value], sees_all: bool = sees_all) -> list[Value]:
                    body(index, sees_all)
                    return []

                e.loop(rows, [], one)
