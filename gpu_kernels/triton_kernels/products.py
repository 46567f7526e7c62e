"""Products of packed tiles with records, in registers: the sums of a block of rows for a block of tokens.

M tokens, N rows of weights. The order of operations is the CPU's (`cpu_kernels.tiles`): exact integer sums over the
columns of a scale, one fused multiply-add for each scale, and one for each span of 64; of floats two chains.
"""

import triton.language as tl

from .arithmetic import bfloat_bits
from .codes import codes_of, minimum_of, scale_of
from .jit import kernel


@kernel
def product(x, rows, here, w, first, size, L: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """float32 [M, N]. x: (codes, their stride, scales, their stride, plain, its stride); rows [M]: of the records,
    where `here`; first: number of the first tile; size: (tiles, bytes of a tile, spans)."""
    tiles, tile_bytes, spans = size
    line = tl.arange(0, N)
    tile = first + line // 16
    unit = tile.to(tl.int64) * tile_bytes
    if L.form == "codes":
        return _of_codes(x, rows, here, w, unit, line % 16, tile < tiles, spans, L, M, N)
    elif L.form == "f8":
        return _of_eights(x, rows, here, w, unit, line % 16, tile < tiles, spans, L, M, N)
    elif L.form == "bf16":
        return _of_pairs(x, rows, here, w, unit, line % 16, tile < tiles, spans, L, M, N)
    else:
        return _of_floats(x, rows, here, w, unit, line % 16, tile < tiles, spans, L, M, N)


@kernel
def _of_codes(
    x,
    rows,
    here,
    w,
    unit,
    lane,
    ok,
    spans,
    L: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    PARTS: tl.constexpr = 32 // L.columns  # scales of 32 columns
    inputs, factors = x[0] + rows * x[1], x[2] + rows * x[3]
    column = tl.arange(0, 32)
    total = tl.zeros((M, N), tl.float32)
    for span in range(spans):
        at, number = unit + span // L.spans * L.unit_bytes, span % L.spans
        value = tl.zeros((M, N), tl.float32)
        for half in tl.static_range(2):
            codes = tl.load(inputs[:, None] + (64 * span + 32 * half + column)[None, :], mask=here[:, None], other=0)
            weights = codes_of(w, at, lane, ok, number, half, L, N)
            for part in tl.static_range(PARTS):
                own = codes
                if PARTS > 1:  # what another scale belongs to does not count
                    own = tl.where((column // L.columns == part)[None, :], codes, 0).to(tl.int8)
                value = _scaled(value, own, weights, w, at, lane, ok, number, PARTS * half + part, L, M)
        total = tl.fma(value, tl.load(factors + span, mask=here, other=0.0)[:, None], total)
    return total


@kernel
def _scaled(value, codes, weights, w, unit, lane, ok, number, place: tl.constexpr, L: tl.constexpr, M: tl.constexpr):
    """value + codes times weights times scale `place`, and the minimum that belongs to it."""
    dot, scale = _dot(codes, weights, M).to(tl.float32), scale_of(w, unit, lane, ok, number, place, L)[None, :]
    value = dot * scale if place == 0 else tl.fma(dot, scale, value)
    if L.minima:
        minimum = minimum_of(w, unit, lane, ok, number, place, L)[None, :]
        value = tl.fma(minimum, tl.sum(codes.to(tl.int32), axis=1).to(tl.float32)[:, None], value)
    return value


@kernel
def _dot(codes, weights, M: tl.constexpr):
    """int32 [M, N]: int8 [M, 32] times int8 [32, N]; matrix units want at least 16 tokens."""
    if M >= 16:
        return tl.dot(codes, weights, out_dtype=tl.int32)
    else:
        return tl.sum(codes.to(tl.int32)[:, :, None] * weights.to(tl.int32)[None, :, :], axis=1)


@kernel
def _of_eights(
    x,
    rows,
    here,
    w,
    unit,
    lane,
    ok,
    spans,
    L: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """8-bit floats: in a span four sums, of the columns that are alike modulo 4."""
    inputs = x[4] + rows * x[5]
    total = tl.zeros((M, N), tl.float32)
    for span in range(spans):
        at = unit + span * L.unit_bytes
        scale = tl.load(w.to(tl.pointer_type(tl.float32)) + (at // 4 + lane), mask=ok, other=0.0) * 256.0
        a, b, c, d = (tl.zeros((M, N), tl.float32),) * 4
        for four in range(16):
            columns = inputs + (64 * span + 4 * four)
            pair = w.to(tl.pointer_type(tl.uint16)) + (at // 2 + 32 + 32 * four + lane)
            first, second = tl.load(pair, mask=ok, other=0), tl.load(pair + 16, mask=ok, other=0)
            a = _added(a, small_float(first)[None, :], columns, here)
            b = _added(b, small_float(first >> 8)[None, :], columns + 1, here)
            c = _added(c, small_float(second)[None, :], columns + 2, here)
            d = _added(d, small_float(second >> 8)[None, :], columns + 3, here)
        total = tl.fma(scale[None, :], (a + b) + (c + d), total)
    return total


@kernel
def small_float(code):
    """2^-8 of the 8-bit float in the low byte: shifted into its place it is that float16."""
    code = code.to(tl.int32)
    return ((code & 0x80) << 8 | (code & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def _added(total, weights, column, here):
    return tl.fma(weights, tl.load(column, mask=here, other=0.0)[:, None], total)


@kernel
def _of_floats(
    x,
    rows,
    here,
    w,
    unit,
    lane,
    ok,
    spans,
    L: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Two chains: of the even columns and of the odd ones."""
    DTYPE: tl.constexpr = tl.float16 if L.form == "f16" else tl.float32
    STEP: tl.constexpr = 2 if L.form == "f16" else 4
    inputs = x[4] + rows * x[5]
    even, odd = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    weights = w.to(tl.pointer_type(DTYPE)) + (unit // STEP + lane)
    for pair in range(32 * spans):
        first = tl.load(weights + 32 * pair, mask=ok, other=0.0).to(tl.float32)
        second = tl.load(weights + (32 * pair + 16), mask=ok, other=0.0).to(tl.float32)
        even = _added(even, first[None, :], inputs + 2 * pair, here)
        odd = _added(odd, second[None, :], inputs + (2 * pair + 1), here)
    return even + odd


@kernel
def _of_pairs(
    x,
    rows,
    here,
    w,
    unit,
    lane,
    ok,
    spans,
    L: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """bfloat16: two chains of pairs of columns, of which the odd one comes first."""
    inputs = x[4] + rows * x[5]
    even, odd = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    weights = w.to(tl.pointer_type(tl.int32)) + (unit // 4 + lane)
    for four in range(16 * spans):
        even = _pair_added(even, tl.load(weights + 32 * four, mask=ok, other=0), inputs, 2 * four, here)
        odd = _pair_added(odd, tl.load(weights + (32 * four + 16), mask=ok, other=0), inputs, 2 * four + 1, here)
    return even + odd


@kernel
def _pair_added(total, weights, inputs, pair, here):
    if inputs.dtype.element_ty == tl.int32:
        both = tl.load(inputs + pair, mask=here, other=0)
    else:
        first = bfloat_bits(tl.load(inputs + 2 * pair, mask=here, other=0.0)).to(tl.int32)
        second = bfloat_bits(tl.load(inputs + (2 * pair + 1), mask=here, other=0.0)).to(tl.int32)
        both = (first & 0xFFFF) | second << 16
    total = tl.fma(_upper(weights)[None, :], _upper(both)[:, None], total)
    return tl.fma(_upper(weights << 16)[None, :], _upper(both << 16)[:, None], total)


@kernel
def _upper(word):
    """The bfloat16 in the upper half of a word."""
    return (word & -65536).to(tl.float32, bitcast=True)
