"""Keys and values of layers whose attention an accelerator runs, in its memory and in RAM: blocks of the same bytes."""

from collections.abc import Iterable

import torch

from ..cpu_kernels.kv_layout import KV_KINDS, key_bytes, part_bytes
from ..gpu_kernels.device import Accelerator, Cost
from ..gpu_kernels.kernels import KvCache
from .device_memory import DeviceMemory
from .kv_store import KvStore
from .spec import ModelSpec


def device_caches(
    accelerator: Accelerator, memory: DeviceMemory, spec: ModelSpec, kind: str, layers: Iterable[int], blocks: int
) -> dict[int, KvCache]:
    """A cache of so many blocks for each layer, with zeros in it."""
    caches = {}
    for layer in layers:
        parts = memory.empty((spec.num_kv_heads, blocks, part_bytes(kind, spec.head_dim)), torch.uint8)
        accelerator.launch(parts.zero_, Cost(parts.numel()))  # what was never written must be a number
        caches[layer] = _cache(parts, kind, spec.head_dim)
    return caches


def host_caches(store: KvStore, spec: ModelSpec, layers: Iterable[int]) -> dict[int, KvCache]:
    """The room in RAM of each layer."""
    return {layer: _cache(torch.from_numpy(store.parts(layer)), store.kind, spec.head_dim) for layer in layers}


def _cache(parts: torch.Tensor, kind: str, head_dim: int) -> KvCache:
    return KvCache(parts, kind, KV_KINDS[kind].limit, head_dim, key_bytes(kind, head_dim))
