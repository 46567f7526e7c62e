"""Keys and values of layers whose attention an accelerator runs, in its memory: blocks as in RAM, by one table."""

from collections.abc import Iterable

import torch

from ..cpu_kernels.kv_layout import KV_KINDS, key_bytes, part_bytes
from ..gpu_kernels.device import Accelerator, Cost
from ..gpu_kernels.kernels import KvCache
from .device_memory import DeviceMemory
from .kv_store import KvStore
from .spec import ModelSpec


def device_caches(
    accelerator: Accelerator, memory: DeviceMemory, spec: ModelSpec, store: KvStore, layers: Iterable[int]
) -> dict[int, KvCache]:
    """A cache for each layer, with the blocks and numbers of `store`, and zeros in it."""
    caches = {}
    for layer in layers:
        shape = (spec.num_kv_heads, store.num_blocks, part_bytes(store.kind, spec.head_dim))
        blocks = memory.empty(shape, torch.uint8)
        accelerator.launch(blocks.zero_, Cost(blocks.numel()))  # what was never written must be a number
        limit, value_at = KV_KINDS[store.kind].limit, key_bytes(store.kind, spec.head_dim)
        caches[layer] = KvCache(blocks, store.kind, limit, spec.head_dim, value_at)
    return caches
