"""FinalNorm: the states that a model ends with, before its head makes logits of them."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class FinalNorm:
    """RMS norm by `weight`, float32. Each row is computed alone, so it has the same bits in any company."""

    def __init__(self, weight: Floats, eps: float) -> None:
        self._weight, self._eps = weight, np.float32(eps)

    def __call__(self, rows: Floats) -> Floats:
        """rows: float32 [tokens, hidden size], the residual stream."""
        out = np.empty_like(rows)
        for row, target in zip(rows, out, strict=True):
            square = np.float32(np.square(row).mean(dtype=np.float64))
            np.multiply(row, np.float32(1.0) / np.sqrt(square + self._eps), out=target)
        out *= self._weight
        return out
