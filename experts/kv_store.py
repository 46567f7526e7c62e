"""The paged KV cache in RAM: per layer a run of blocks of 16 positions, laid out as `kv_layout` says."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.kv_layout import KV_KINDS, key_bytes, part_bytes
from .memory import arena, drop
from .spec import ModelSpec


def kv_block_bytes(spec: ModelSpec, kind: str) -> int:
    """Bytes that one block of positions takes in all layers together, keys, values and their scales."""
    return spec.num_layers * spec.num_kv_heads * part_bytes(kind, spec.head_dim)


class KvStore:
    """Memory of `num_blocks` blocks of a kind in KV_KINDS. layers: those that have room here; None is all."""

    def __init__(self, spec: ModelSpec, num_blocks: int, kind: str, layers: Iterable[int] | None = None) -> None:
        self.kind, self.num_blocks, self._head_dim = kind, num_blocks, spec.head_dim
        # head by head: blocks in a row are read as one stream
        self._part_bytes = part_bytes(kind, spec.head_dim)
        self._head_bytes = num_blocks * self._part_bytes
        self.layer_bytes = spec.num_kv_heads * self._head_bytes
        self._layers: dict[int, NDArray[np.uint8]] = {}
        self.add(range(spec.num_layers) if layers is None else layers)

    def add(self, layers: Iterable[int]) -> None:
        """Give layers room that have none."""
        new = self.without_room(layers)
        memory = arena(len(new) * self.layer_bytes)
        for place, layer in enumerate(new):
            self._layers[layer] = memory[place * self.layer_bytes :][: self.layer_bytes]

    def without_room(self, layers: Iterable[int]) -> list[int]:
        return [layer for layer in layers if layer not in self._layers]

    def fields(self, layer: int) -> dict[str, int]:
        """The descriptor fields by which ops find the cache of a layer."""
        keys = self._layers[layer].ctypes.data
        return {
            "k_cache": keys,
            "v_cache": keys + key_bytes(self.kind, self._head_dim),
            "kv_kind": KV_KINDS[self.kind].number,
            "block_bytes": self._part_bytes,
            "head_bytes": self._head_bytes,
        }

    def parts(self, layer: int) -> NDArray[np.uint8]:
        """uint8 [kv_heads, num_blocks, part_bytes] of a layer."""
        return self._layers[layer].reshape(-1, self.num_blocks, self._part_bytes)

    def drop(self, blocks: Sequence[int]) -> int:
        """Give back the memory of blocks, in ascending order, whose content nobody needs. Bytes."""
        runs = np.split(np.asarray(blocks, np.int64), np.flatnonzero(np.diff(blocks) != 1) + 1) if blocks else []
        return sum(
            drop(head[run[0] : run[-1] + 1].reshape(-1))
            for layer in self._layers
            for head in self.parts(layer)
            for run in runs
        )

    @property
    def nbytes(self) -> int:
        return len(self._layers) * self.layer_bytes

    def fill(self) -> None:
        """Write every page: those that never were share one page of zeros, which comes from cache."""
        for memory in self._layers.values():
            memory[:] = 0
