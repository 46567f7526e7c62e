"""The running softmax of attention: rows walk a context in strides of 64 positions, as the CPU's do, bit for bit.

Each segment of 1024 positions is softened by itself, and the parts are merged in their order: so it changes nothing
which program walks a segment, nor which rows it takes along. A part of ROWS rows: (tops [ROWS], sums of weights in 16
lanes [ROWS, 16], totals [ROWS, WIDTH]). What a row does not see weighs exactly 0.
"""

import triton.language as tl

from .jit import kernel
from .lanes import exp2, fold, sum_lanes
from .scores import score_codes, score_floats
from .values import add_codes, add_floats

SEGMENT = 1024  # positions
UNSEEN = tl.constexpr(-1e30)  # the top of a row that has seen nothing; finite, so that differences of it are


@kernel
def open_part(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Nothing seen yet."""
    tops = tl.full((ROWS,), UNSEEN, tl.float32)
    return tops, tl.zeros((ROWS, 16), tl.float32), tl.zeros((ROWS, WIDTH), tl.float32)


@kernel
def merge_part(total, part):
    """What was seen so far and a part, both brought to the larger top."""
    tops, sums, totals = total
    part_tops, part_sums, part_totals = part
    top = tl.where(tops > part_tops, tops, part_tops)
    old, new = exp2(tops - top), exp2(part_tops - top)
    sums = tl.fma(sums, old[:, None], part_sums * new[:, None])
    return top, sums, tl.fma(totals, old[:, None], part_totals * new[:, None])


@kernel
def outputs(part, ROWS: tl.constexpr):
    """What rows attend to [ROWS, WIDTH]."""
    _, sums, totals = part
    return totals * tl.div_rn(1.0, sum_lanes(sums, ROWS))[:, None]


@kernel
def first_seen(position, window):
    """The first position that one sees."""
    return tl.where(window > 0, tl.maximum(position - window + 1, 0), 0)


@kernel
def attend_segment(
    queries, scale, sight, cache, segment,
    BITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The part of rows over what they see of a segment.

    queries, cache: see `scores`; scale: of `open_queries`. sight: (the first and the last position that each row sees
    [ROWS], the first and the last that any of them sees).
    """
    first, last, oldest, newest = sight
    tops, sums, totals = open_part(ROWS, WIDTH)
    begin = tl.maximum(oldest, segment * 1024) // 64 * 64
    end = tl.minimum(newest, segment * 1024 + 1023) + 1
    for start in range(begin, end, 64):
        if BITS > 0:
            scores = score_codes(queries, cache, start, end, BITS, ROWS)
        else:
            scores = score_floats(queries, cache, start, end, ROWS)
        position = (start + tl.arange(0, 64))[None, :]
        seen = (position >= first[:, None]) & (position <= last[:, None])
        # a row that sees nothing here keeps its top
        highest = tl.max(tl.where(seen, scores, float("-inf")), axis=1) * scale
        top = tl.where(highest > tops, highest, tops)
        old = exp2(tops - top)
        weights = tl.where(seen, exp2(tl.fma(scores, scale[:, None], -top[:, None])), 0.0)
        tops, sums = top, tl.fma(sums, old[:, None], fold(weights, ROWS))
        if BITS > 0:
            totals = add_codes(totals, old, weights, seen, cache, start, end, BITS, (ROWS, WIDTH))
        else:
            totals = add_floats(totals, old, weights, cache, start, end, (ROWS, WIDTH))
    return tops, sums, totals
