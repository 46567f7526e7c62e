"""Attention's scores: rows of queries times the keys of 64 positions of a paged cache.

Products of codes are exact sums of integers; codes of 14 bits are halved into bytes for them. Floats are added as on
the CPU: a fused chain over even elements, one over odd ones, then both. A product of float32 tiles that are not rounded
to fewer bits is such a chain, along its inner dimension.

queries: (numbers, where each row begins [ROWS], which rows there are [ROWS], what makes codes of them [ROWS]); cache:
(pairs of codes or floats, halves, table of blocks, head_dim, row, part, value_at), as of `kv.CacheView` and of a head.
"""

import triton.language as tl

from .arithmetic import INFINITY, MAGIC, SMALLEST, bfloat, magnitude_bits
from .jit import kernel

QUERY_LIMIT = tl.constexpr(8191.0)  # the largest code of a query
LOG2_E = tl.constexpr(1.4426950408889634)


@kernel
def scaling(largest, limit: tl.constexpr):
    """From the bits of largest magnitudes: scales, NaN for what is not finite, and 1 / scale."""
    magnitude = largest.to(tl.float32, bitcast=True)
    some = magnitude > SMALLEST
    inverse = tl.where(some, tl.div_rn(limit, tl.where(some, magnitude, 1.0)), 0.0)
    return tl.where(largest >= INFINITY, float("nan"), magnitude * (1 / limit)), inverse


@kernel
def open_queries(q, rows, real, head_dim, BITS: tl.constexpr, WIDTH: tl.constexpr):
    """Of each row what makes exponents of 2 of its scores, and what makes codes of it."""
    column = tl.arange(0, WIDTH)[None, :]
    value = tl.load(q + rows[:, None] + column, mask=real[:, None] & (column < head_dim), other=0.0)
    scale, inverse = scaling(tl.max(magnitude_bits(value), axis=1), QUERY_LIMIT)
    if BITS > 0:
        return scale * LOG2_E, inverse
    return tl.zeros_like(scale) + LOG2_E, inverse


@kernel
def codes(value, inverse):
    """round(value * inverse), rounded once, as 16 bits hold it; of a NaN anything."""
    return (tl.fma(value, inverse, MAGIC).to(tl.int32, bitcast=True) << 16) >> 16


@kernel
def place_of(table, position, end, part):
    """Where the parts of positions begin behind their head's first, and which positions are before `end`."""
    there = position < end
    return tl.load(table + position // 16, mask=there, other=0) * part, there


@kernel
def unpaired(pairs, BITS: tl.constexpr, PAIRS: tl.constexpr, WIDTH: tl.constexpr):
    """Two codes in each number [PAIRS, WIDTH] -> int32 [2 * PAIRS, WIDTH], one of them below the other."""
    both = pairs.to(tl.int32)
    low, high = (both << (32 - BITS)) >> (32 - BITS), (both << (32 - 2 * BITS)) >> (32 - BITS)
    return tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), (2 * PAIRS, WIDTH))


@kernel
def dot_codes(a, b, BITS: tl.constexpr):
    """The integer product of codes a [M, 32] of 14 bits and b [32, N] of 14, or of 8; no sum on the way is longer."""
    a_high, a_low = (a >> 7).to(tl.int8), (a & 127).to(tl.int8)
    if BITS == 8:
        b_all = b.to(tl.int8)
        return tl.dot(a_low, b_all, tl.dot(a_high, b_all, out_dtype=tl.int32) << 7, out_dtype=tl.int32)
    b_high, b_low = (b >> 7).to(tl.int8), (b & 127).to(tl.int8)
    total = tl.dot(a_high, b_high, out_dtype=tl.int32) << 7
    total = tl.dot(a_high, b_low, total, out_dtype=tl.int32)
    total = tl.dot(a_low, b_high, total, out_dtype=tl.int32) << 7
    return tl.dot(a_low, b_low, total, out_dtype=tl.int32)


@kernel
def score_codes(queries, cache, start, end, BITS: tl.constexpr, ROWS: tl.constexpr):
    """Scores [ROWS, 64] of the positions from `start` on, but for the scales of the queries. Nothing is read from
    `end` on."""
    q, rows, real, inverse = queries
    pairs, halves, table, head_dim, row, part, _ = cache
    position = start + tl.arange(0, 64)
    place, there = place_of(table, position, end, part)
    keys = pairs + place + position % 16
    scales = halves + place * (BITS // 8) + row * BITS + position % 16
    scores = tl.zeros((ROWS, 64), tl.float32)
    for first in range(0, row, 32):  # elements that share a scale
        column = first + tl.arange(0, 32)[None, :]
        value = tl.load(q + rows[:, None] + column, mask=real[:, None] & (column < head_dim), other=0.0)
        pair = first // 2 + tl.arange(0, 16)[:, None]
        key = tl.load(keys[None, :] + pair * 16, mask=there[None, :] & (pair * 2 < row), other=0)
        total = dot_codes(codes(value, inverse[:, None]), unpaired(key, BITS, 16, 64), BITS)
        scale = bfloat(tl.load(scales + first // 2, mask=there, other=0))
        scores = tl.fma(total.to(tl.float32), scale[None, :], scores)
    return scores


@kernel
def widened(number):
    """Floats of a cache as float32."""
    if number.dtype == tl.int16:
        return bfloat(number)
    return number.to(tl.float32)


@kernel
def score_floats(queries, cache, start, end, ROWS: tl.constexpr):
    """The same of a cache of floats, where nothing is left out."""
    q, rows, real, _ = queries
    numbers, _, table, head_dim, row, part, _ = cache
    position = start + tl.arange(0, 64)
    place, there = place_of(table, position, end, part)
    keys = numbers + place + position % 16
    even, odd = tl.zeros((ROWS, 64), tl.float32), tl.zeros((ROWS, 64), tl.float32)
    for first in range(0, row, 32):
        left = first + 2 * tl.arange(0, 16)
        query, key = q + rows[:, None] + left[None, :], keys[None, :] + left[:, None] * 16
        kept, inside = real[:, None] & (left < head_dim)[None, :], there[None, :] & (left < row)[:, None]
        a, b = tl.load(query, mask=kept, other=0.0), tl.load(key, mask=inside, other=0)
        even = tl.dot(a, widened(b), even, input_precision="ieee")
        a, b = tl.load(query + 1, mask=kept, other=0.0), tl.load(key + 16, mask=inside, other=0)
        odd = tl.dot(a, widened(b), odd, input_precision="ieee")
    return even + odd
