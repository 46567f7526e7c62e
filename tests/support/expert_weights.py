"""Packed experts of random bytes, with nothing around them."""

from collections.abc import Sequence

import numpy as np
from isotherm.experts.memory import arena
from isotherm.experts.pack import PackedMatrix, PackedWeights

KIND, ROWS, COLUMNS, EXPERTS = "q4", 32, 64, 5
SIZE = 2 * 576  # of a matrix: two tiles of a unit


def expert_weights(layers: Sequence[int]) -> PackedWeights:
    """EXPERTS of each of these layers."""
    packed = PackedWeights(arena(len(layers) * EXPERTS * 3 * SIZE))
    packed.arena[:] = np.random.default_rng(0).integers(0, 256, packed.nbytes)
    places = iter(range(packed.arena.ctypes.data, packed.arena.ctypes.data + packed.nbytes, SIZE))
    for layer in layers:
        for part in ("gate", "up", "down"):
            bank = [PackedMatrix(KIND, ROWS, COLUMNS, next(places)) for _ in range(EXPERTS)]
            packed.banks[f"layers.{layer}.experts.{part}"] = bank
    return packed
