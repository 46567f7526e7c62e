"""A linear layer on packed tiles."""

import triton.language as tl

from .jit import kernel
from .products import product


@kernel
def linear_kernel(
    x,
    w,
    size,
    out,
    stride,
    lines,
    bias,
    limit,
    count,
    L: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    ADD: tl.constexpr,
):
    """Program (i, j): N rows of the matrix from i * N on, for M tokens from j * M on."""
    here_count = tl.load(count)
    token = tl.program_id(1).to(tl.int64) * M + tl.arange(0, M)
    if tl.program_id(1) * M >= here_count:
        return
    here = token < here_count
    value = product(x, token, here, w, tl.program_id(0) * (N // 16), size, L, M, N)
    line = tl.program_id(0) * N + tl.arange(0, N)
    if bias is None:
        value += 0.0  # as on the CPU: no negative zero is left
    else:
        value += tl.load(bias + line, mask=line < lines, other=0.0)[None, :]
    value = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))  # NaN passes
    target, ok = out + (token * stride)[:, None] + line[None, :], here[:, None] & (line < lines)[None, :]
    if ADD:
        value = tl.load(target, mask=ok, other=0.0) + value
    tl.store(target, value, mask=ok)
