"""Paged causal attention in torch, in the order of the CPU's kernels and so with their bits.

The context of a row (a token's query head) is cut in segments that are softened by themselves and merged in order; a
segment is walked in strides of four blocks with a running softmax. What a row does not see has weight 0.

G sequences with N tokens each are worked on together: R = N * heads / kv_heads rows of each KV head. P positions.
"""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels import Heads, KvCache, Sequences
from .attention_codes import CodeQueries
from .attention_floats import FloatQueries
from .fused import LANES, add_lanes, divide, fma
from .kv import KV_BLOCK
from .softmax import exp2

SEGMENT, STRIDE = 1024, 64  # positions
_UNSEEN = -1e30  # the maximum of a row that has seen nothing


class Part(NamedTuple):
    """What rows add up to: maxima [kv_heads, G, R, 1], sums of weights [..., 16 lanes], of weighted values [..., D]."""

    top: Tensor
    weights: Tensor
    values: Tensor


class Rows(NamedTuple):
    """What rows may see: positions `first` to `last` of their sequence, int64 [G, R, 1], by its blocks [G, blocks]."""

    first: Tensor
    last: Tensor
    table: Tensor


def attend(q: Tensor, cache: KvCache, heads: Heads, sequences: Sequences, out: Tensor, count: Tensor) -> None:
    """See `Kernels.attend`."""
    tokens = int(count)
    for chosen, table in _batches(sequences, tokens):
        rows = q[chosen].view(*chosen.shape, heads.kv_heads, -1, heads.head_dim)  # [G, N, kv_heads, heads of it, D]
        shared = rows.shape[3]
        last = sequences.positions[chosen].repeat_interleave(shared, dim=1).unsqueeze(2)
        first = (last - heads.window + 1).clamp(min=0) if heads.window else torch.zeros_like(last)
        queries = rows.permute(2, 0, 1, 3, 4).flatten(2, 3)  # [kv_heads, G, R, D]
        result = _attention(queries, cache, Rows(first, last, table))
        out[chosen] = result.view(heads.kv_heads, *chosen.shape, shared, -1).permute(1, 2, 0, 3, 4).flatten(2)


def _batches(sequences: Sequences, tokens: int) -> list[tuple[Tensor, Tensor]]:
    """Token numbers [G, N] and block tables [G, blocks] of the sequences with equally many tokens of the step."""
    rows = sequences.sequence[:tokens]
    counts = torch.bincount(rows, minlength=len(sequences.tables))
    order = torch.argsort(rows, stable=True)
    batches = []
    for size in sorted(set(counts.tolist()) - {0}):
        chosen = order[counts[rows[order]] == size]
        batches.append((chosen.view(-1, size), sequences.tables[counts == size]))
    return batches


def _attention(q: Tensor, cache: KvCache, rows: Rows) -> Tensor:
    """q [kv_heads, G, R, D] -> the same shape."""
    queries = (CodeQueries if cache.limit else FloatQueries)(q, cache)
    first, last = (int(x) for x in (rows.first.min(), rows.last.max()))
    borders = range(first // SEGMENT * SEGMENT, last + 1, SEGMENT)
    parts = (_segment(queries, rows, max(first, b) // STRIDE * STRIDE, min(last, b + SEGMENT - 1)) for b in borders)
    total = reduce(_merged, parts)
    share = divide(1, add_lanes(total.weights)).unsqueeze(-1)
    return (total.values * share)[..., : cache.head_dim]


def _merged(total: Part, part: Part) -> Part:
    """total + part, both brought to the larger maximum."""
    top = torch.where(total.top > part.top, total.top, part.top)
    ours, theirs = (exp2(one.top - top) for one in (total, part))
    sums = [fma(mine, ours, other * theirs) for mine, other in zip(total[1:], part[1:], strict=True)]
    return Part(top, *sums)


def _segment(queries: CodeQueries | FloatQueries, rows: Rows, begin: int, last: int) -> Part:
    """The part of what lies between the stride's first position `begin` and `last`."""
    strides = (last - begin) // STRIDE + 1
    positions = torch.arange(begin, begin + strides * STRIDE, device=rows.last.device)
    seen = (positions >= rows.first) & (positions <= rows.last)  # [G, R, P]
    # of what lies behind a sequence's last block, any block will do
    places = positions[::KV_BLOCK].minimum(rows.last.amax(dim=1) // KV_BLOCK * KV_BLOCK) // KV_BLOCK
    blocks = rows.table.gather(1, places)  # [G, P / 16]
    scores, seen = (torch.unflatten(x, -1, (strides, STRIDE)) for x in (queries.scores(blocks), seen))
    highest = torch.where(seen, scores, -torch.inf).amax(dim=-1) * queries.scale  # [kv_heads, G, R, strides]
    start = torch.full_like(highest[..., :1], _UNSEEN)
    rising = torch.cat([start, torch.where(highest > _UNSEEN, highest, _UNSEEN)], dim=-1)  # without what is no number
    tops = rising.cummax(dim=-1).values
    weights = exp2(fma(scores, queries.scale.unsqueeze(-1), -tops[..., 1:, None]))
    weights = torch.where(seen, weights, 0)
    kept = exp2(tops[..., :-1] - tops[..., 1:])
    a, b, c, d = torch.split(weights, LANES, dim=-1)
    sums = torch.zeros_like(a[..., 0, :])
    for each, old in zip(((a + b) + (c + d)).unbind(dim=-2), torch.split(kept, 1, dim=-1), strict=True):
        sums = fma(sums, old, each)
    return Part(tops[..., -1:], sums, queries.weighted(weights, seen, kept, blocks))
