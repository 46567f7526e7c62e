"""Adding the experts' outputs to the residual stream, in the order of the choices."""

import triton.language as tl

from .arithmetic import sigmoid
from .jit import kernel

ROUNDING = tl.constexpr(1e-6)  # of the sum of weights that were made to add up to one


@kernel
def combine_kernel(
    x,
    stride,
    columns,
    outs,
    outs_stride,
    weights,
    gate,
    gate_stride,
    count,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """Program (t, i): N columns of token t from i * N on.

    (sum of weights) * last + sum of weight * (row - last): experts that agree give exactly what one gives.
    """
    token = tl.program_id(0).to(tl.int64)
    if token >= tl.load(count):
        return
    column = tl.program_id(1) * N + tl.arange(0, N)
    ok = column < columns
    source = outs + token * K * outs_stride + column
    last = tl.load(source + (K - 1) * outs_stride, mask=ok, other=0.0)
    total = _whole(weights, token, K) * last
    for choice in tl.static_range(K - 1):
        row = tl.load(source + choice * outs_stride, mask=ok, other=0.0)
        total = tl.fma(_weight(weights, token, choice, K), row - last, total)
    before = tl.load(x + token * stride + column, mask=ok, other=0.0)
    scale = 1.0 if gate is None else sigmoid(tl.load(gate + token * gate_stride))
    tl.store(x + token * stride + column, tl.fma(scale, total, before), mask=ok)


@kernel
def _weight(weights, token, choice, K: tl.constexpr):
    if weights is None:
        return 1.0
    else:
        return tl.load(weights + token * K + choice)


@kernel
def _whole(weights, token, K: tl.constexpr):
    """The sum of the weights; one where only their rounding keeps it from that."""
    total = 0.0
    for choice in tl.static_range(K):
        total += _weight(weights, token, choice, K)
    return tl.where(tl.abs(total - 1.0) < ROUNDING, 1.0, total)
