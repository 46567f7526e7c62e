"""The paged KV cache in RAM: per layer a run of blocks of 16 positions, k and v apart."""

from ..cpu_kernels.layout import KV_BLOCK
from .memory import arena
from .spec import ModelSpec


def kv_block_bytes(spec: ModelSpec, kv_half: bool) -> int:
    """Bytes that one block of positions takes in all layers together, k and v."""
    return 2 * spec.num_layers * _layer_block_bytes(spec, kv_half)


def _layer_block_bytes(spec: ModelSpec, kv_half: bool) -> int:
    return spec.kv_size * KV_BLOCK * (2 if kv_half else 4)


class KvStore:
    """Memory of `num_blocks` blocks; float16 where `kv_half`, else float32."""

    def __init__(self, spec: ModelSpec, num_blocks: int, kv_half: bool) -> None:
        self._kv_half = kv_half
        self._block_bytes = _layer_block_bytes(spec, kv_half)
        self._layer_bytes = num_blocks * self._block_bytes
        self._memory = arena(2 * spec.num_layers * self._layer_bytes)

    def fields(self, layer: int) -> dict[str, int]:
        """The descriptor fields by which ops find the cache of a layer."""
        k = self._memory.ctypes.data + 2 * layer * self._layer_bytes
        return {
            "k_cache": k,
            "v_cache": k + self._layer_bytes,
            "kv_half": int(self._kv_half),
            "block_bytes": self._block_bytes,
        }

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes
