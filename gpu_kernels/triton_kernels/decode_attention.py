"""Paged attention of few tokens: a program for each segment of a context, then one that merges the segments' parts.

Query heads that share a KV head are the rows of a program, so their keys and values are read once.
"""

import torch
import triton
import triton.language as tl

from ..kernels import Heads, KvCache, Sequences
from .jit import EXACT, kernel
from .kv import BLOCK, view
from .scores import open_queries
from .softmax import SEGMENT, attend_segment, first_seen, merge_part, open_part, outputs


def parts_shape(tokens: int, heads: Heads, blocks: int) -> tuple[int, int, int, int]:
    """Of the float32 that hold the parts of a step: tokens, heads, segments of the longest context, numbers of a part.

    blocks: of a sequence, at most.
    """
    row = -(-heads.head_dim // 16) * 16
    return tokens, heads.heads, -(-blocks * BLOCK // SEGMENT), 32 + row


@kernel
def attend_parts_kernel(
    q, places, count, cache, heads, parts,
    BITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """q: (numbers, stride of a row); places: (positions, sequence, tables, stride of a table); cache: see
    `CacheView.units`; heads: (that share a KV head, head_dim, window); parts: (numbers, segments)."""
    token, kv_head, segment = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if token >= tl.load(count):
        return
    shared, head_dim, window = heads
    newest = tl.load(places[0] + token)
    oldest = first_seen(newest, window)
    if (segment * 1024 > newest) | (segment * 1024 + 1023 < oldest):
        return
    units, halves, blocks, row, part, value_at = cache
    each, head = tl.arange(0, ROWS), kv_head * shared + tl.arange(0, ROWS)
    real, q_rows = each < shared, token * q[1] + head * head_dim
    scale, inverse = open_queries(q[0], q_rows, real, head_dim, BITS, WIDTH)
    sight = tl.where(real, oldest, 1), tl.where(real, newest, 0), oldest, newest
    at, table = kv_head.to(tl.int64) * blocks * part, places[2] + tl.load(places[1] + token) * places[3]
    own = units + at, halves + at * (BITS // 8), table, head_dim, row, part, value_at
    tops, sums, totals = attend_segment((q[0], q_rows, real, inverse), scale, sight, own, segment, BITS, ROWS, WIDTH)
    target = parts[0] + ((token * tl.num_programs(1) * shared + head) * parts[1] + segment) * (32 + row)
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(target, tops, mask=real)
    tl.store(target[:, None] + 16 + tl.arange(0, 16)[None, :], sums, mask=real[:, None])
    tl.store(target[:, None] + 32 + column, totals, mask=real[:, None] & (column < row))


@kernel
def merge_parts_kernel(positions, count, parts, sizes, out, WIDTH: tl.constexpr):
    """sizes: (window, head_dim, row); out: (numbers, stride of a row)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token >= tl.load(count):
        return
    window, head_dim, row = sizes
    newest = tl.load(positions + token)
    total = open_part(1, WIDTH)
    column = tl.arange(0, WIDTH)[None, :]
    for segment in range(first_seen(newest, window) // 1024, newest // 1024 + 1):
        source = parts[0] + ((token * tl.num_programs(1) + head) * parts[1] + segment) * (32 + row)
        tops, sums = tl.load(source + tl.arange(0, 1)), tl.load(source + 16 + tl.arange(0, 16)[None, :])
        totals = tl.load(source + 32 + column, mask=column < row, other=0.0)
        total = merge_part(total, (tops, sums, totals))
    target = out[0] + token * out[1] + head * head_dim + column
    tl.store(target, outputs(total, 1), mask=column < head_dim)


def attend_by_segments(
    q: torch.Tensor,
    cache: KvCache,
    heads: Heads,
    sequences: Sequences,
    out: torch.Tensor,
    count: torch.Tensor,
    parts: torch.Tensor,
) -> None:
    """out [T, heads * D] = attention of q, which comes scaled. parts: float32, as many as `parts_shape` says."""
    tokens, number, segments, _ = parts_shape(len(q), heads, sequences.tables.shape[1])
    seen, shared = view(cache), heads.heads // heads.kv_heads
    width = triton.next_power_of_2(seen.row)
    attend_parts_kernel[(tokens, heads.kv_heads, segments)](
        (q, q.stride(0)),
        (sequences.positions, sequences.sequence, sequences.tables, sequences.tables.stride(0)),
        count,
        seen.units(),
        (shared, heads.head_dim, heads.window),
        (parts, segments),
        BITS=seen.bits,
        ROWS=max(16, triton.next_power_of_2(shared)),
        WIDTH=width,
        **EXACT,
    )
    merge_parts_kernel[(tokens, number)](
        sequences.positions,
        count,
        (parts, segments),
        (heads.window, heads.head_dim, seen.row),
        (out, out.stride(0)),
        WIDTH=width,
        num_warps=1,
        **EXACT,
    )
