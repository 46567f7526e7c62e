"""Products of float weights with plain records, in registers: sums over the columns one after the other, as on the CPU.

A row's sum is two chains of fused multiply-adds: of every other column, or of every other pair for bfloat16; of 8-bit
floats four in each span. Arguments are those of `products.product`.
"""

import triton.language as tl

from .arithmetic import bfloat_bits
from .jit import kernel


@kernel
def of_floats(
    inputs, here, tile, lines, spans, L: tl.constexpr, M: tl.constexpr, N: tl.constexpr, UNROLL: tl.constexpr
):
    """UNROLL: pairs of columns that are asked for at once, so that one need not wait for the other."""
    DTYPE: tl.constexpr = tl.float16 if L.form == "f16" else tl.float32
    SIZE: tl.constexpr = 2 if L.form == "f16" else 4
    away, lane, ok = lines
    weights = tile.to(tl.pointer_type(DTYPE)) + (away // SIZE + lane)
    even, odd = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    for start in range(0, 32 * spans, UNROLL):
        for i in tl.static_range(UNROLL):
            pair = start + i
            first = tl.load(weights + 32 * pair, mask=ok, other=0.0).to(tl.float32)
            second = tl.load(weights + (32 * pair + 16), mask=ok, other=0.0).to(tl.float32)
            even = _added(even, first, inputs + 2 * pair, here)
            odd = _added(odd, second, inputs + (2 * pair + 1), here)
    return even + odd


@kernel
def of_pairs(inputs, here, tile, lines, spans, M: tl.constexpr, N: tl.constexpr, UNROLL: tl.constexpr):
    """bfloat16: of a pair of columns the odd one comes first. UNROLL: as for `of_floats`."""
    away, lane, ok = lines
    weights = tile.to(tl.pointer_type(tl.int32)) + (away // 4 + lane)
    even, odd = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    for start in range(0, 32 * spans, UNROLL):
        for i in tl.static_range(UNROLL // 2):
            pair = start + 2 * i
            even = _pair_added(even, tl.load(weights + 16 * pair, mask=ok, other=0), inputs, pair, here)
            odd = _pair_added(odd, tl.load(weights + (16 * pair + 16), mask=ok, other=0), inputs, pair + 1, here)
    return even + odd


@kernel
def of_eights(inputs, here, tile, lines, spans, M: tl.constexpr, N: tl.constexpr, UNROLL: tl.constexpr):
    """8-bit floats: in a span the columns that are alike modulo 4 share a sum. UNROLL: as for `of_floats`."""
    away, lane, ok = lines
    total = tl.zeros((M, N), tl.float32)
    for span in range(spans):
        unit = tile + span * 1088
        scale = tl.load(unit.to(tl.pointer_type(tl.float32)) + (away // 4 + lane), mask=ok, other=0.0) * 256.0
        pairs = unit.to(tl.pointer_type(tl.uint16)) + (away // 2 + lane)
        a, b, c, d = (tl.zeros((M, N), tl.float32),) * 4
        for start in range(0, 32, UNROLL):
            for i in tl.static_range(UNROLL // 2):
                pair = start + 2 * i
                column = inputs + (64 * span + 2 * pair)
                first = tl.load(pairs + (32 + 16 * pair), mask=ok, other=0)
                second = tl.load(pairs + (48 + 16 * pair), mask=ok, other=0)
                a = _added(a, small_float(first), column, here)
                b = _added(b, small_float(first >> 8), column + 1, here)
                c = _added(c, small_float(second), column + 2, here)
                d = _added(d, small_float(second >> 8), column + 3, here)
        total = tl.fma(scale[None, :], (a + b) + (c + d), total)
    return total


@kernel
def small_float(code):
    """2^-8 of the 8-bit float in the low byte: shifted into its place it is that float16."""
    code = code.to(tl.int32)
    return ((code & 0x80) << 8 | (code & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@kernel
def _added(total, weights, column, here):
    return tl.fma(weights[None, :], tl.load(column, mask=here, other=0.0)[:, None], total)


@kernel
def _pair_added(total, weights, inputs, pair, here):
    """inputs: pointers to float32, or to pairs of bfloat16 as int32."""
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
