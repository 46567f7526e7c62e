"""The paged KV cache in RAM: per layer a run of blocks of 16 positions, laid out as `kv_layout` says."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.kv_layout import KV_KINDS, key_bytes, part_bytes
from .memory import arena
from .spec import ModelSpec


def kv_block_bytes(spec: ModelSpec, kind: str) -> int:
    """Bytes that one block of positions takes in all layers together, keys, values and their scales."""
    return spec.num_layers * spec.num_kv_heads * part_bytes(kind, spec.head_dim)


class KvStore:
    """Memory of `num_blocks` blocks of a kind in KV_KINDS. layers: those that have room here; None is all."""

    def __init__(self, spec: ModelSpec, num_blocks: int, kind: str, layers: Iterable[int] | None = None) -> None:
        self.kind, self.num_blocks, self._head_dim = kind, num_blocks, spec.head_dim
        own = range(spec.num_layers) if layers is None else layers
        self._places = {layer: place for place, layer in enumerate(own)}
        # head by head: blocks in a row are read as one stream
        self._part_bytes = part_bytes(kind, spec.head_dim)
        self._head_bytes = num_blocks * self._part_bytes
        self._layer_bytes = spec.num_kv_heads * self._head_bytes
        self._memory = arena(len(self._places) * self._layer_bytes)

    def fields(self, layer: int) -> dict[str, int]:
        """The descriptor fields by which ops find the cache of a layer."""
        keys = self._memory.ctypes.data + self._places[layer] * self._layer_bytes
        return {
            "k_cache": keys,
            "v_cache": keys + key_bytes(self.kind, self._head_dim),
            "kv_kind": KV_KINDS[self.kind].number,
            "block_bytes": self._part_bytes,
            "head_bytes": self._head_bytes,
        }

    def parts(self, layer: int) -> NDArray[np.uint8]:
        """uint8 [kv_heads, num_blocks, part_bytes] of a layer."""
        first = self._places[layer] * self._layer_bytes
        return self._memory[first : first + self._layer_bytes].reshape(-1, self.num_blocks, self._part_bytes)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    def fill(self) -> None:
        """Write every page: those that never were share one page of zeros, which comes from cache."""
        self._memory[:] = 0
