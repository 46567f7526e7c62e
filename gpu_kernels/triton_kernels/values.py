"""Attention's sums of values: weights of rows times the values of 64 positions of a paged cache.

Weights times the scales of their values become codes relative to the largest of a row's stride. Products of codes are
exact sums of integers over the 16 positions of a block, and these are added as floats. Values that are floats are added
in a fused chain over positions. `cache` is that of `scores`.
"""

import triton.language as tl

from .arithmetic import bfloat, magnitude_bits
from .jit import kernel
from .scores import codes, dot_codes, place_of, scaling, unpaired, widened

WEIGHT_LIMIT = tl.constexpr(16383.0)  # the largest code of a weight


@kernel
def _halved(x, ROWS: tl.constexpr, HALF: tl.constexpr):
    """x [ROWS, 2 * HALF] -> its left and its right half."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, HALF)), (0, 2, 1)))


@kernel
def _add_two_blocks(total, code, cache, start, end, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """total += code [R, 32] times the values of two blocks from position `start` on, one after the other."""
    pairs, _, table, _, row, part, value_at = cache
    position, column = start + 2 * tl.arange(0, 16), tl.arange(0, WIDTH)[None, :]
    place, there = place_of(table, position, end, part)
    at = place[:, None] + value_at + (column // 16 * 8 + (position % 16 // 2)[:, None]) * 16 + column % 16
    pair = tl.load(pairs + at, mask=there[:, None] & (column < row), other=0)
    value, second = unpaired(pair, BITS, 16, WIDTH), tl.arange(0, 32)[None, :] >= 16
    total += dot_codes(tl.where(second, 0, code), value, BITS).to(tl.float32)
    total += dot_codes(tl.where(second, code, 0), value, BITS).to(tl.float32)
    return total


@kernel
def add_codes(
    totals, old, weights, seen, cache, start, end,
    BITS: tl.constexpr, SHAPE: tl.constexpr,
):  # fmt: skip
    """totals [ROWS, WIDTH] * old + weights [ROWS, 64] @ values of the positions from `start` on; SHAPE: of totals."""
    _, halves, table, _, row, part, value_at = cache
    position = start + tl.arange(0, 64)
    place, there = place_of(table, position, end, part)
    at = (place + value_at) * (BITS // 8) + row * BITS + position % 16
    scale = bfloat(tl.load(halves + at, mask=there, other=0))
    scaled = tl.where(seen, weights * scale[None, :], 0.0)  # a scale that is not seen may be anything
    new, inverse = scaling(tl.max(magnitude_bits(scaled), axis=1), WEIGHT_LIMIT)
    left, right = _halved(codes(scaled, inverse[:, None]), SHAPE[0], 32)
    total = tl.zeros(SHAPE, tl.float32)
    total = _add_two_blocks(total, left, cache, start, end, BITS, SHAPE[1])
    total = _add_two_blocks(total, right, cache, start + 32, end, BITS, SHAPE[1])
    return tl.fma(total, new[:, None], totals * old[:, None])


@kernel
def _add_block(totals, weights, cache, start, end, WIDTH: tl.constexpr):
    """totals += weights [R, 16] times the values of a block."""
    numbers, _, table, _, row, part, value_at = cache
    position, column = start + tl.arange(0, 16), tl.arange(0, WIDTH)[None, :]
    place, there = place_of(table, position, end, part)
    at = place[:, None] + value_at + (position % 16)[:, None] * row + column
    value = tl.load(numbers + at, mask=there[:, None] & (column < row), other=0)
    return tl.dot(weights, widened(value), totals, input_precision="ieee")


@kernel
def add_floats(totals, old, weights, cache, start, end, SHAPE: tl.constexpr):
    """The same of a cache of floats."""
    totals *= old[:, None]
    left, right = _halved(weights, SHAPE[0], 32)
    first, second = _halved(left, SHAPE[0], 16)
    third, fourth = _halved(right, SHAPE[0], 16)
    totals = _add_block(totals, first, cache, start, end, SHAPE[1])
    totals = _add_block(totals, second, cache, start + 16, end, SHAPE[1])
    totals = _add_block(totals, third, cache, start + 32, end, SHAPE[1])
    return _add_block(totals, fourth, cache, start + 48, end, SHAPE[1])
