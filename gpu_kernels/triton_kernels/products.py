"""Products of packed tiles with records, in registers: the sums of a block of rows for a block of tokens.

M tokens, N rows of weights. The order of operations is the CPU's (`cpu_kernels.tiles`): exact integer sums over the
columns of a scale, one fused multiply-add for each scale, and one for each span of 64. Of float weights: see `floats`.
"""

import triton.language as tl

from .codes import codes_of, minimum_of, scale_of
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
        return of_eights(x[4] + rows * x[5], here, tile, lines, spans, M, N, UNROLL)
    elif L.form == "bf16":
        return of_pairs(x[4] + rows * x[5], here, tile, lines, spans, M, N, UNROLL)
    else:
        return of_floats(x[4] + rows * x[5], here, tile, lines, spans, L, M, N, UNROLL)


@kernel
def _of_codes(inputs, factors, here, tile, lines, spans, L: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    PARTS: tl.constexpr = 32 // L.columns  # scales of 32 columns
    column = tl.arange(0, 32)
    total = tl.zeros((M, N), tl.float32)
    for span in range(spans):
        unit, number = tile + span // L.spans * L.unit_bytes, span % L.spans
        value = tl.zeros((M, N), tl.float32)
        for half in tl.static_range(2):
            at = inputs[:, None] + (64 * span + 32 * half + column)[None, :]
            codes, weights = tl.load(at, mask=here[:, None], other=0), codes_of(unit, number, lines, half, L, N)
            for part in tl.static_range(PARTS):
                own = codes
                if PARTS > 1:  # what another scale belongs to does not count
                    own = tl.where((column // L.columns == part)[None, :], codes, 0).to(tl.int8)
                value = _scaled(value, own, weights, unit, number, lines, PARTS * half + part, L, M)
        total = tl.fma(value, tl.load(factors + span, mask=here, other=0.0)[:, None], total)
    return total


@kernel
def _scaled(value, codes, weights, unit, number, lines, place: tl.constexpr, L: tl.constexpr, M: tl.constexpr):
    """value + codes times weights times scale `place`, and the minimum that belongs to it."""
    dot, scale = _dot(codes, weights, M).to(tl.float32), scale_of(unit, number, lines, place, L)[None, :]
    value = dot * scale if place == 0 else tl.fma(dot, scale, value)
    if L.minima:
        minimum = minimum_of(unit, number, lines, place, L)[None, :]
        value = tl.fma(minimum, tl.sum(codes.to(tl.int32), axis=1).to(tl.float32)[:, None], value)
    return value


@kernel
def _dot(codes, weights, M: tl.constexpr):
    """int32 [M, N]: int8 [M, 32] times int8 [32, N]; matrix units want at least 16 tokens."""
    if M >= 16:
        return tl.dot(codes, weights, out_dtype=tl.int32)
    else:
        return tl.sum(codes.to(tl.int32)[:, :, None] * weights.to(tl.int32)[None, :, :], axis=1)
