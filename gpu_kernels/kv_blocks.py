"""Moving blocks of the KV cache, by torch on whatever device they lie: their parts are gathered in a buffer that one
copy takes over a link, and scattered into other blocks behind it. A block's bytes are the same on every device and in
host memory.

A buffer holds [layers, kv_heads, N blocks, part_bytes] without gaps, and may be longer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kernels import KvCache


def staging_bytes(caches: Sequence[KvCache], count: int) -> int:
    """Bytes of a buffer for `count` blocks of some layers."""
    return sum(cache.memory.shape[0] * cache.memory.shape[2] for cache in caches) * count


def gather_blocks(caches: Sequence[KvCache], blocks: Tensor, staging: Tensor) -> Tensor:
    """Fill a buffer, uint8 [bytes], from blocks int64 [N] of each layer. What was filled, for a copy: its first bytes.

    All lie on one device. Raises ValueError if the buffer is too small.
    """
    for cache, part in zip(caches, _parts(caches, len(blocks), staging), strict=True):
        torch.index_select(cache.memory, 1, blocks, out=part)
    return staging[: staging_bytes(caches, len(blocks))]


def scatter_blocks(caches: Sequence[KvCache], blocks: Tensor, staging: Tensor) -> None:
    """Fill blocks int64 [N] of each layer from a buffer that `gather_blocks` filled; no block stands there twice.

    All lie on one device. Raises ValueError if the buffer is too small.
    """
    for cache, part in zip(caches, _parts(caches, len(blocks), staging), strict=True):
        cache.memory.index_copy_(1, blocks, part)


def _parts(caches: Sequence[KvCache], count: int, staging: Tensor) -> list[Tensor]:
    """Each layer's share of a buffer: views [kv_heads, count, part_bytes]."""
    needed = staging_bytes(caches, count)
    if len(staging) < needed:
        raise ValueError(
            f"{count} KV blocks of {len(caches)} layers take {needed} bytes; the buffer has {len(staging)}"
        )
    parts, start = [], 0
    for cache in caches:
        heads, _, part_bytes = cache.memory.shape
        end = start + heads * count * part_bytes
        parts.append(staging[start:end].view(heads, count, part_bytes))
        start = end
    return parts
