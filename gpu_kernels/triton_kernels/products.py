"""Products of packed tiles with records, in registers: the sums of a block of rows for a block of tokens.

M tokens, N rows of weights. The order of operations is the CPU's (`cpu_kernels.tiles`): exact integer sums over the
columns of a scale, one fused multiply-add for each scale, and one for each span of 64. Of float weights: see `floats`.
"""

import triton.language as tl

from .codes import codes_of, levels_of, words_of
from .floats import of_eights, of_floats, of_pairs
from .jit import kernel


@kernel
def product(x, rows, here, w, first, size, L: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """float32 [M, N]. x: (codes, their stride, scales, their stride, plain, its stride); rows [M]: of the records,
    where `here`; first: number of the first tile; size: (tiles, bytes of a tile, spans)."""
    UNROLL: tl.constexpr = 16 if M < 16 else 4
    tiles, tile_bytes, spans = size
    line = tl.arange(0, N)
    lines = (line // 16 * tile_bytes, line % 16, first + line // 16 < tiles)
    tile = w + first.to(tl.int64) * tile_bytes
    if L.form == "codes":
        return _of_codes(x[0] + rows * x[1], x[2] + rows * x[3], here, tile, lines, spans, L, M, N)
    elif L.form == "f8":
        return of_eights(x[4] + rows * x[5], here, tile, lines, spans, M, N, UNROLL // 2)
    elif L.form == "bf16":
        return of_pairs(x[4] + rows * x[5], here, tile, lines, spans, M, N, UNROLL)
    else:
        return of_floats(x[4] + rows * x[5], here, tile, lines, spans, L, M, N, UNROLL)


@kernel
def _of_codes(inputs, factors, here, tile, lines, spans, L: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    total = tl.zeros((M, N), tl.float32)
    waiting = _asked(inputs, factors, here, tile, lines, 0, L)
    for span in range(spans):
        first, second, factor = waiting
        # What comes next is on its way while this is multiplied; behind the last span it is the last again.
        waiting = _asked(inputs, factors, here, tile, lines, tl.minimum(span + 1, spans - 1), L)
        value = _half(tl.zeros((M, N), tl.float32), first, True, L, M, N)
        value = _half(value, second, False, L, M, N)
        total = tl.fma(value, factor[:, None], total)
    return total


@kernel
def _asked(inputs, factors, here, tile, lines, span, L: tl.constexpr):
    """All that a span needs from memory: for each half codes, words and levels, and the records' scales."""
    unit, number = tile + span // L.spans * L.unit_bytes, span % L.spans
    at = inputs[:, None] + (64 * span + tl.arange(0, 32))[None, :]
    first, second = tl.load(at, mask=here[:, None], other=0), tl.load(at + 32, mask=here[:, None], other=0)
    return (
        (first, words_of(unit, number, lines, 0, L), levels_of(unit, number, lines, 0, L)),
        (second, words_of(unit, number, lines, 1, L), levels_of(unit, number, lines, 1, L)),
        tl.load(factors + span, mask=here, other=0.0),
    )


@kernel
def _half(value, asked, IS_FIRST: tl.constexpr, L: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """value + the products of 32 columns."""
    codes, words, levels = asked
    weights = codes_of(words, L, N)
    if L.columns == 32:
        return _scaled(value, codes, weights, levels[0], levels[1], IS_FIRST, L, M)
    else:  # what another scale belongs to does not count
        is_left = (tl.arange(0, 32) < 16)[None, :]
        left, right = tl.where(is_left, codes, 0).to(tl.int8), tl.where(is_left, 0, codes).to(tl.int8)
        value = _scaled(value, left, weights, levels[0], levels[1], IS_FIRST, L, M)
        return _scaled(value, right, weights, levels[2], levels[3], False, L, M)


@kernel
def _scaled(value, codes, weights, scale, minimum, IS_FIRST: tl.constexpr, L: tl.constexpr, M: tl.constexpr):
    """value + codes times weights times their scale, and the minimum times the sum of the codes."""
    dot = _dot(codes, weights, M).to(tl.float32)
    value = dot * scale[None, :] if IS_FIRST else tl.fma(dot, scale[None, :], value)
    if L.minima:
        value = tl.fma(minimum[None, :], tl.sum(codes.to(tl.int32), axis=1).to(tl.float32)[:, None], value)
    return value


@kernel
def _dot(codes, weights, M: tl.constexpr):
    """int32 [M, N]: int8 [M, 32] times int8 [32, N]; matrix units want at least 16 tokens."""
    if M >= 16:
        return tl.dot(codes, weights, out_dtype=tl.int32)
    else:
        return tl.sum(codes.to(tl.int32)[:, :, None] * weights.to(tl.int32)[None, :, :], axis=1)
