"""What ops on an accelerator cost: bytes of its memory and arithmetic. Weights and the cache are what counts there."""

from collections.abc import Iterable

from ..gpu_kernels.device import Cost
from ..gpu_kernels.tensors import Matrix

_VALUE = 4  # bytes of an activation


def products(matrices: Iterable[Matrix], rows: int, experts: int = 1) -> Cost:
    """Of so many rows with matrices that are read together; of banks, `experts` of each are read."""
    nbytes = flops = 0.0
    kind = "other"
    for matrix in matrices:
        tile_bytes = matrix.tiles[0].numel() if matrix.tiles.dim() == 4 else matrix.tiles.numel()
        nbytes += experts * tile_bytes
        flops += 2.0 * rows * matrix.rows * matrix.columns
        kind = matrix.name
    return Cost(nbytes, flops, kind)


def values(rows: int, columns: int) -> Cost:
    """Of an op that reads and writes activations."""
    return Cost(2.0 * _VALUE * rows * columns)


def attention(positions: int, heads: int, head_dim: int, position_bytes: float) -> Cost:
    """Of tokens that see so many positions in all, each of which is read for itself."""
    return Cost(positions * position_bytes, 4.0 * positions * heads * head_dim)
