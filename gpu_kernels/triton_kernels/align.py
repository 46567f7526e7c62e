"""Finding the pairs of each slot, for launches of one size: experts that are not here and empty blocks are marked."""

import triton.language as tl

from .jit import kernel


@kernel
def align_kernel(
    ids,
    top_k,
    slots,
    experts,
    order,
    blocks_out,
    blocks,
    count,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Program e writes the run of expert e, the last program the blocks that are left.

    Each counts all pairs by itself: that takes microseconds, and one launch.
    """
    own, used = tl.program_id(0), tl.load(count) * top_k
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, used, CHUNK):
        counts += tl.histogram(_experts_of(ids, start, used, slots, experts, CHUNK), BINS)
    runs = tl.where(bins < experts, (counts + BLOCK - 1) // BLOCK, 0)
    first = tl.sum(tl.where(bins < own, runs, 0))
    if own == experts:
        _mark_rest(order, blocks_out, first, blocks, used, BLOCK)
        return
    slot = tl.load(slots + own)
    mine = tl.sum(tl.where(bins == own, counts, 0))
    place = first * BLOCK
    for start in range(0, used, CHUNK):
        is_own = (_experts_of(ids, start, used, slots, experts, CHUNK) == own).to(tl.int32)
        rank = tl.cumsum(is_own, axis=0)
        tl.store(order + place + rank - 1, start + tl.arange(0, CHUNK), mask=is_own > 0)
        place += tl.sum(is_own)
    end = (first + (mine + BLOCK - 1) // BLOCK) * BLOCK
    filler = place + tl.arange(0, BLOCK)
    tl.store(order + filler, tl.zeros((BLOCK,), tl.int32) + used, mask=filler < end)
    for block in range(first, end // BLOCK):
        tl.store(blocks_out + block, slot)


@kernel
def _experts_of(ids, start, used, slots, experts, CHUNK: tl.constexpr):
    """The experts of some pairs; `experts` for one that is not here and beyond the last pair."""
    pair = start + tl.arange(0, CHUNK)
    expert = tl.load(ids + pair, mask=pair < used, other=0)
    is_here = (pair < used) & (tl.load(slots + expert) >= 0)
    return tl.where(is_here, expert, experts)


@kernel
def _mark_rest(order, blocks_out, first, blocks, used, BLOCK: tl.constexpr):
    for block in range(first, blocks):
        tl.store(blocks_out + block, -1)
        tl.store(order + block * BLOCK + tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.int32) + used)
