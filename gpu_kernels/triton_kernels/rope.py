"""Finishing queries and keys: norm, clip, rotary embedding and the queries' scale, in place."""

import torch
import triton
import triton.language as tl

from ..kernels import Heads, Sequences
from .jit import EXACT, kernel
from .norm import norm_factor

_NORMS = {"none": 0, "head": 1, "full": 2}


@kernel
def _finished(x, weight, factor, clip, mask, NORM: tl.constexpr):
    """Numbers of a head, normed and clipped; a NaN passes."""
    value = tl.load(x, mask=mask, other=0.0)
    if NORM > 0:
        value = (value * factor) * tl.load(weight, mask=mask, other=0.0)
    if clip > 0:
        value = tl.where(value < -clip, -clip, value)
        value = tl.where(value > clip, clip, value)
    return value


@kernel
def _turn_head(x, norm, scale, turn, sizes, NORM: tl.constexpr, BLOCK: tl.constexpr):
    """Elements i and i + half of the head at x, by the i-th angle; those beyond the rotary part keep theirs.

    norm: (weight, factor, clip); turn: (cosines, sines); sizes: (half, head_dim).
    """
    weight, factor, clip = norm
    half, head_dim = sizes
    low = tl.arange(0, BLOCK)
    turned, high = low < half, low + half
    a = _finished(x + low, weight + low, factor, clip, turned, NORM)
    b = _finished(x + high, weight + high, factor, clip, turned, NORM)
    cos, sin = tl.load(turn[0] + low, mask=turned, other=0.0), tl.load(turn[1] + low, mask=turned, other=0.0)
    tl.store(x + low, (a * cos - b * sin) * scale, mask=turned)
    tl.store(x + high, (b * cos + a * sin) * scale, mask=turned)
    for first in range(2 * half, head_dim, BLOCK):
        column = first + low
        rest = _finished(x + column, weight + column, factor, clip, column < head_dim, NORM)
        tl.store(x + column, rest * scale, mask=column < head_dim)


@kernel
def rotate_kernel(
    q, k, norm, turns, sizes, positions, count,
    NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """q, k: (numbers, stride of a row, weight of the norm, heads); norm: (eps, clip); turns: (cosines, sines); sizes:
    (half, head_dim, scale of q). Items: heads of a token; with a norm over all heads, which nobody else may change
    meanwhile, those of q and those of k."""
    token, item = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token >= tl.load(count):
        return
    eps, clip = norm
    half, head_dim, q_scale = sizes
    of_keys = item >= (1 if NORM == 2 else q[3])
    x = k[0] + token * k[1] if of_keys else q[0] + token * q[1]
    weight, heads = k[2] if of_keys else q[2], k[3] if of_keys else q[3]
    scale = 1.0 if of_keys else q_scale
    at = tl.load(positions + token) * half
    turn = turns[0] + at, turns[1] + at
    if NORM == 2:
        factor = norm_factor(x, heads * head_dim, eps)
        for head in range(heads):
            start = head * head_dim
            own = weight + start, factor, clip
            _turn_head(x + start, own, scale, turn, (half, head_dim), NORM, BLOCK)
    else:
        x += (item - q[3] if of_keys else item) * head_dim
        factor = norm_factor(x, head_dim, eps) if NORM == 1 else scale
        _turn_head(x, (weight, factor, clip), scale, turn, (half, head_dim), NORM, BLOCK)


def rotate(
    q: torch.Tensor,
    k: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    turns: tuple[torch.Tensor, torch.Tensor],
    heads: Heads,
    sequences: Sequences,
    count: torch.Tensor,
) -> None:
    """Norm and rotate q [T, heads * D] and k [T, kv_heads * D] in place; q is multiplied by D ** -0.5.

    Raises ValueError for a clip before a norm of each head, which no model has.
    """
    if heads.norm == "head" and heads.clip > 0:
        raise ValueError("q and k are clipped after a norm over all heads or none, not before one of each head")
    half = turns[0].shape[1]
    rest = heads.head_dim - 2 * half
    full = heads.norm == "full"
    q_norm, k_norm = norms if norms is not None else (q, k)  # not read
    rotate_kernel[(len(q), 2 if full else heads.heads + heads.kv_heads)](
        (q, q.stride(0), q_norm, heads.heads),
        (k, k.stride(0), k_norm, heads.kv_heads),
        (heads.eps, float(heads.clip)),
        turns,
        (half, heads.head_dim, heads.head_dim**-0.5),
        sequences.positions,
        count,
        NORM=_NORMS[heads.norm],
        BLOCK=triton.next_power_of_2(max(half, rest // 4)),
        num_warps=4 if full else 1,
        **EXACT,
    )
