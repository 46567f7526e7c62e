"""What ops on an accelerator cost: bytes of its memory and arithmetic. Weights and the cache are what counts there.

Only a modelled clock asks: what takes a while to find out is given to `launch` as a call.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

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


def routed(matrices: Iterable[Matrix], ids: NDArray[np.int64]) -> Cost:
    """Of pairs with these experts, all of which have slots."""
    return products(matrices, len(ids), len(np.unique(ids)))


def chosen(matrices: Sequence[Matrix], ids: torch.Tensor, slots: torch.Tensor) -> Cost:
    """Of the pairs of choices `ids` whose expert has a slot, by a table of all experts: for a modelled clock, whose
    device does what is queued at once."""
    taken = ids.reshape(-1)
    taken = taken[(taken >= 0) & (taken < len(slots))].long()  # all of them but on a device that is late
    here = taken[slots[taken] >= 0]
    return products(matrices, len(here), len(here.unique()))


def values(rows: int, columns: int) -> Cost:
    """Of an op that reads and writes activations."""
    return Cost(2.0 * _VALUE * rows * columns)


def attention(pairs: int, positions: int, heads: int, head_dim: int, position_bytes: float) -> Cost:
    """Of so many pairs of a token and a position that it sees; positions: that are read."""
    return Cost(positions * position_bytes, 4.0 * pairs * heads * head_dim)
