"""What ops on an accelerator take of the KV cache, made from what those on the CPU take."""

import numpy as np
import torch
from isotherm.cpu_kernels.kv_layout import KV_KINDS, key_bytes, part_bytes
from isotherm.gpu_kernels.kernels import Heads, KvCache, Sequences

MODES = "none", "head", "full"  # by the number that the CPU's kernels know them by


def empty_cache(kind, kv_heads, blocks, head_dim):
    memory = torch.zeros(kv_heads, blocks, part_bytes(kind, head_dim), dtype=torch.uint8)
    return KvCache(memory, kind, KV_KINDS[kind].limit, head_dim, key_bytes(kind, head_dim))


def cache_of(kind, head_dim, parts):
    """The same bytes as the CPU's uint8 [blocks, kv_heads, part_bytes]."""
    blocks, kv_heads, _ = parts.shape
    cache = empty_cache(kind, kv_heads, blocks, head_dim)
    cache.memory.copy_(torch.from_numpy(parts).transpose(0, 1))
    return cache


def parts_of(cache):
    """The bytes of a cache as the CPU's tests have them: uint8 [blocks, kv_heads, part_bytes]."""
    return cache.memory.transpose(0, 1).numpy()


def heads_of(heads, kv_heads, head_dim, mode=0, eps=1e-5, clip=0.0, window=0):
    return Heads(heads, kv_heads, head_dim, MODES[mode], eps, clip, window)


def sequences_of(parts):
    """parts: for each sequence its tokens' positions and its block table, both NumPy arrays. Slots follow."""
    longest = max(len(table) for _, table in parts)
    tables = np.stack([np.pad(table, (0, longest - len(table)), constant_values=-1) for _, table in parts])
    positions = np.concatenate([positions for positions, _ in parts])
    rows = np.repeat(np.arange(len(parts)), [len(positions) for positions, _ in parts])
    slots = tables[rows, positions // 16] * 16 + positions % 16
    return Sequences(*(torch.from_numpy(x.astype(np.int64)) for x in (positions, slots, rows, tables)))
