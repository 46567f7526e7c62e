"""Float arithmetic with the CPU's bits: each step is rounded as there, and fused only where `tl.fma` says so."""

import triton.language as tl

from .jit import kernel

MAGIC = tl.constexpr(12582912.0)  # 1.5 x 2^23: a sum with it is rounded to an integer, halves to even
SMALLEST = tl.constexpr(2.0**-100)  # a span below it is all zero
INFINITY = tl.constexpr(0x7F800000)  # its bits; those of a NaN exceed them


@kernel
def exp_of(x):
    """e^x within 2 ulp; 0 below -87, NaN of NaN."""
    low = x < -87.0
    x = tl.where(low, -87.0, tl.where(x > 88.0, 88.0, x))
    n = (x * 1.4426950408889634 + MAGIC) - MAGIC
    r = tl.fma(n, -0.693359375, x)
    r = tl.fma(n, 2.12194440e-4, r)
    y = tl.fma(r, 1.0 / 720.0, 1.0 / 120.0)
    y = tl.fma(y, r, 1.0 / 24.0)
    y = tl.fma(y, r, 1.0 / 6.0)
    y = tl.fma(y, r, 0.5)
    y = tl.fma(y, r, 1.0)
    y = tl.fma(y, r, 1.0)
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(low, 0.0, y * power)


@kernel
def sigmoid(x):
    return tl.div_rn(1.0, 1.0 + exp_of(-x))


@kernel
def gated(gate, up):
    """SiLU(gate) * up."""
    return tl.div_rn(gate, 1.0 + exp_of(-gate)) * up


@kernel
def bfloat(bits):
    """The numbers of bfloat16 given as int16."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@kernel
def bfloat_bits(x):
    """The bfloat16 nearest to each float32, ties to even, as int16. A NaN stays one."""
    bits = x.to(tl.uint32, bitcast=True)
    high = bits >> 16
    rounded = (bits + 0x7FFF + (high & 1)) >> 16
    return tl.where(x != x, high | 0x40, rounded).to(tl.int16)


@kernel
def magnitude_bits(x):
    """The bits of magnitudes, which order like them; those of a NaN exceed all others."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@kernel
def quantise(values):
    """values [R, 64] -> int8 codes [R, 64] and the float32 scales [R] of a "q8" record."""
    largest = tl.max(magnitude_bits(values), axis=1).to(tl.float32, bitcast=True)  # NaN wins and shows in the scale
    nothing = largest < SMALLEST
    inverse = tl.where(nothing, 0.0, tl.div_rn(127.0, tl.where(nothing, 1.0, largest)))
    whole = values * inverse[:, None] + MAGIC
    return whole.to(tl.int32, bitcast=True).to(tl.int8), tl.div_rn(tl.where(nothing, 0.0, largest), 127.0)
