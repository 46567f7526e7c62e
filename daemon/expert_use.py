"""ExpertUse: how often tokens chose each expert, and on which device it lay then."""

import numpy as np
from numpy.typing import NDArray

from .choices import Ids

HALF_LIFE = 4096  # tokens after which older ones count half


class ExpertUse:
    """Of tokens that were decoded. heat: float64 [MoE layers, experts], recent choices. hits: int64 [devices + 1],
    choices since the start by the device that the expert lay on, the CPU first."""

    def __init__(self, layers: int, experts: int, devices: int) -> None:
        self.heat = np.zeros((layers, experts))
        self.hits = np.zeros(devices + 1, np.int64)
        self._first = (np.arange(layers) * experts)[:, None]

    def count(self, ids: Ids, where: NDArray[np.int8]) -> None:
        """ids: [MoE layers, tokens, top_k]; where: int8, of all experts layer by layer, -1 for the CPU."""
        flat = (ids.reshape(len(ids), -1) + self._first).reshape(-1)
        counts = np.bincount(flat, minlength=self.heat.size).reshape(self.heat.shape)
        self.heat *= 2.0 ** (-ids.shape[1] / HALF_LIFE)
        self.heat += counts
        self.hits += np.bincount(where[flat] + 1, minlength=len(self.hits))
