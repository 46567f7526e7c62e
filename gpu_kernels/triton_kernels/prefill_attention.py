"""Paged attention of many tokens, of any sequences: tiles of a sequence's next tokens walk its context together.

Tokens of a sequence follow each other in a step. A tile begins at the first of them and at each multiple of its size,
which programs find out on the device; those of other tokens end at once.
"""

import torch
import triton
import triton.language as tl

from ..kernels import Heads, KvCache, Sequences
from .jit import EXACT, kernel
from .kv import view
from .scores import open_queries
from .softmax import attend_segment, first_seen, merge_part, open_part, outputs

_ROWS = 32  # of a tile: tokens times the heads that share a KV head; with more, eight warps have too few registers


@kernel
def attend_tile_kernel(
    q, places, count, cache, heads, out,
    BITS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """q, out: (numbers, stride of a row); places, cache, heads: as in `decode_attention`; TILE: (tokens, heads)."""
    token, kv_head, number = tl.program_id(0), tl.program_id(1), tl.load(count)
    if token >= number:
        return
    positions, sequence, tables, table_stride = places
    own = tl.load(sequence + token)
    if (token % TILE[0] != 0) & (tl.load(sequence + token - 1, mask=token > 0, other=-1) == own):
        return
    ROWS: tl.constexpr = TILE[0] * TILE[1]
    shared, head_dim, window = heads
    each = tl.arange(0, ROWS)
    of_token, head = token + each // TILE[1], kv_head * shared + each % TILE[1]
    there = (of_token < number) & (of_token < (token // TILE[0] + 1) * TILE[0])
    real = (tl.load(sequence + of_token, mask=there, other=-1) == own) & (each % TILE[1] < shared)
    last = tl.load(positions + of_token, mask=real, other=-1)
    first = tl.where(real, first_seen(last, window), 1 << 40)
    sight = first, last, tl.min(first, axis=0), tl.max(last, axis=0)
    q_rows = of_token.to(tl.int64) * q[1] + head * head_dim
    scale, inverse = open_queries(q[0], q_rows, real, head_dim, BITS, WIDTH)
    units, halves, blocks, row, part, value_at = cache
    at, table = kv_head.to(tl.int64) * blocks * part, tables + own * table_stride
    of_head = units + at, halves + at * (BITS // 8), table, head_dim, row, part, value_at
    total = open_part(ROWS, WIDTH)
    for segment in range(sight[2] // 1024, sight[3] // 1024 + 1):
        seen = attend_segment((q[0], q_rows, real, inverse), scale, sight, of_head, segment, BITS, ROWS, WIDTH)
        total = merge_part(total, seen)
    column = tl.arange(0, WIDTH)[None, :]
    target = out[0] + of_token.to(tl.int64) * out[1] + head * head_dim
    tl.store(target[:, None] + column, outputs(total, ROWS), mask=real[:, None] & (column < head_dim))


def attend_by_tiles(
    q: torch.Tensor,
    cache: KvCache,
    heads: Heads,
    sequences: Sequences,
    out: torch.Tensor,
    count: torch.Tensor,
) -> None:
    """out [T, heads * D] = attention of q, which comes scaled."""
    seen, shared = view(cache), heads.heads // heads.kv_heads
    together = triton.next_power_of_2(shared)
    attend_tile_kernel[(len(q), heads.kv_heads)](
        (q, q.stride(0)),
        (sequences.positions, sequences.sequence, sequences.tables, sequences.tables.stride(0)),
        count,
        seen.units(),
        (shared, heads.head_dim, heads.window),
        (out, out.stride(0)),
        BITS=seen.bits,
        TILE=(max(_ROWS // together, 1), together),
        WIDTH=triton.next_power_of_2(seen.row),
        num_warps=8,
        **EXACT,
    )
