"""The products of experts: blocks of pairs that fall on one slot of a bank each, found by `align`."""

import triton.language as tl

from .arithmetic import gated
from .jit import kernel
from .products import product
from .records import store_spans


@kernel
def gate_up_kernel(
    x,
    top_k,
    gate,
    gate_slot,
    gate_size,
    up,
    up_slot,
    up_size,
    order,
    slots,
    out,
    lines,
    count,
    G: tl.constexpr,
    U: tl.constexpr,
    M: tl.constexpr,
):
    """Program (i, j): span i of the inner records of the pairs of block j. gate_slot, up_slot: bytes of a slot."""
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    if slot < 0:
        return
    pair = tl.load(order + tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    here = pair < tl.load(count) * top_k
    token, first = pair // top_k, tl.program_id(0) * 4
    gates = product(x, token, here, gate + slot * gate_slot, first, gate_size, G, M, 64)
    ups = product(x, token, here, up + slot * up_slot, first, up_size, U, M, 64)
    inside = tl.program_id(0) * 64 + tl.arange(0, 64) < lines
    values = tl.where(inside[None, :], gated(gates, ups), 0.0)
    store_spans(values, pair, tl.program_id(0) + tl.zeros((M,), tl.int32), here, out)


@kernel
def down_kernel(
    inner,
    top_k,
    w,
    slot_bytes,
    size,
    order,
    slots,
    out,
    stride,
    lines,
    count,
    L: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Program (i, j): N rows of the matrix from i * N on, for the pairs of block j."""
    slot = tl.load(slots + tl.program_id(1)).to(tl.int64)
    if slot < 0:
        return
    pair = tl.load(order + tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    here = pair < tl.load(count) * top_k
    value = product(inner, pair, here, w + slot * slot_bytes, tl.program_id(0) * (N // 16), size, L, M, N)
    line = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + (pair * stride)[:, None] + line[None, :], value, mask=here[:, None] & (line < lines)[None, :])
