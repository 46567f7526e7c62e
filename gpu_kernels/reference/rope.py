"""Norm and rotation of queries and keys, in the order of the CPU's: products and sums are rounded one by one."""

import torch
from torch import Tensor

from ..kernels import Heads, Sequences
from .records import normed


def rotate(
    q: Tensor,
    k: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    turns: tuple[Tensor, Tensor],
    heads: Heads,
    sequences: Sequences,
    count: Tensor,
) -> None:
    """See `Kernels.rotate`. norms: of q and k, float32 [D] for each head or [heads * D] for all at once. turns: cosines
    and sines, float32 [positions, half], of which each turns elements i and i + half of a head."""
    tokens = int(count)
    positions = sequences.positions[:tokens]
    cosines, sines = (table[positions].unsqueeze(1) for table in turns)  # [T, 1, half]
    weights = norms or (None, None)
    for number, (x, weight) in enumerate(zip((q[:tokens], k[:tokens]), weights, strict=True)):
        rows = _turned(_normed(x, weight, heads), cosines, sines)
        if number == 0:
            rows = rows * heads.head_dim**-0.5
        x.copy_(rows.flatten(1))


def _normed(x: Tensor, weight: Tensor | None, heads: Heads) -> Tensor:
    """Rows [T, heads * D] after norm and clip: [T, heads, D]."""
    if heads.norm == "full" and weight is not None:
        x = normed(x, weight, heads.eps)
    if heads.clip > 0:
        x = x.clamp(-heads.clip, heads.clip)
    rows = x.reshape(-1, heads.head_dim)
    if heads.norm == "head" and weight is not None:
        rows = normed(rows, weight, heads.eps)
    return rows.view(len(x), -1, heads.head_dim)


def _turned(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    half = cosines.shape[-1]
    a, b, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines, rest], dim=-1)
