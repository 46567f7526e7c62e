"""The CPU's vectors of 16 lanes: how they are summed, and the functions that its attention computes in them."""

import triton.language as tl

from .arithmetic import MAGIC
from .jit import kernel


@kernel
def sum_lanes(x, ROWS: tl.constexpr):
    """x [ROWS, 16] -> [ROWS]: added by halves."""
    x = tl.sum(tl.reshape(x, (ROWS, 2, 8)), axis=1)
    x = tl.sum(tl.reshape(x, (ROWS, 2, 4)), axis=1)
    x = tl.sum(tl.reshape(x, (ROWS, 2, 2)), axis=1)
    return tl.sum(x, axis=1)


@kernel
def fold(x, ROWS: tl.constexpr):
    """x [ROWS, 64] -> [ROWS, 16]: the sum of its four parts, by pairs."""
    return tl.sum(tl.sum(tl.reshape(x, (ROWS, 2, 2, 16)), axis=2), axis=1)


@kernel
def exp2(x):
    """2^x, x up to about 0: some 2^-125 below -125, NaN of NaN."""
    x = tl.where(x < -125.0, -125.0, x)
    shifted = x + MAGIC
    part = x - (shifted - MAGIC)
    y = tl.fma(part, 0.0013264738, 0.009671513)
    y = tl.fma(y, part, 0.055507337)
    y = tl.fma(y, part, 0.24022242)
    y = tl.fma(y, part, 0.69314698)
    y = tl.fma(y, part, 1.0)
    exponent = shifted.to(tl.int32, bitcast=True) << 23
    return (y.to(tl.int32, bitcast=True) + exponent).to(tl.float32, bitcast=True)
