"""Packed experts of random bytes, with nothing around them."""

from collections.abc import Callable, Sequence

import numpy as np
from isotherm.experts.memory import arena
from isotherm.experts.pack import PackedMatrix, PackedWeights
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

KIND, ROWS, COLUMNS, EXPERTS = "q4", 32, 64, 5
SIZE = 2 * 576  # of a matrix: two tiles of a unit


def expert_weights(layers: Sequence[int], laid: Callable[[Bytes], Bytes] = lambda content: content) -> PackedWeights:
    """EXPERTS of each of these layers. laid: where an arena's content lies."""
    content = arena(len(layers) * EXPERTS * 3 * SIZE)
    content[:] = np.random.default_rng(0).integers(0, 256, content.nbytes)
    packed = PackedWeights(laid(content))
    places = iter(range(packed.arena.ctypes.data, packed.arena.ctypes.data + packed.nbytes, SIZE))
    for layer in layers:
        for part in ("gate", "up", "down"):
            bank = [PackedMatrix(KIND, ROWS, COLUMNS, next(places)) for _ in range(EXPERTS)]
            packed.banks[f"layers.{layer}.experts.{part}"] = bank
    return packed
