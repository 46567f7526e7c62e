"""RMS norm of rows, into the records that kinds of weights read."""

import triton.language as tl

from .jit import kernel
from .lanes import fold, sum_lanes
from .records import store_spans


@kernel
def norm_factor(x, n, eps):
    """1 / sqrt(mean of squares + eps) of the n float32 at x."""
    lane = tl.arange(0, 64)
    sums = tl.zeros((64,), tl.float32)
    for start in tl.range(0, n, 64, loop_unroll_factor=4):
        value = tl.load(x + start + lane, mask=start + lane < n, other=0.0)
        sums = tl.fma(value, value, sums)
    total = tl.sum(sum_lanes(fold(tl.reshape(sums, (1, 64)), 1), 1), axis=0)
    mean = tl.div_rn(total, tl.cast(n, tl.float32))
    return tl.div_rn(1.0, tl.sqrt_rn(mean + eps))


@kernel
def rms_norm_kernel(x, stride, weight, columns, eps, out, count, SPANS: tl.constexpr):
    """Program t: row t, SPANS spans at a time."""
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(count):
        return
    factor = norm_factor(x + row * stride, columns, eps)
    for first in range(0, columns, 64 * SPANS):
        span = first // 64 + tl.arange(0, SPANS)
        column = span[:, None] * 64 + tl.arange(0, 64)[None, :]
        values = tl.load(x + row * stride + column, mask=column < columns, other=0.0) * factor
        values = values * tl.load(weight + column, mask=column < columns, other=0.0)
        store_spans(values, row + 0 * span, span, 64 * span < columns, out)
