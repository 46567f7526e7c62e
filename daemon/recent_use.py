"""RecentUse: how often tokens chose each expert lately."""

import numpy as np
from numpy.typing import NDArray

from .expert_use import HALF_LIFE


class RecentUse:
    """Of one phase. counts: float64 [MoE layers, experts], of which older ones fade; tokens: how many they are of."""

    def __init__(self, layers: int, experts: int) -> None:
        self.counts = np.zeros((layers, experts))
        self.tokens = 0.0

    def add(self, counts: NDArray[np.integer], tokens: int) -> None:
        """So many more tokens chose experts so often: [MoE layers, experts]."""
        kept = 2.0 ** (-tokens / HALF_LIFE)
        self.counts *= kept
        self.counts += counts
        self.tokens = self.tokens * kept + tokens

    def copy(self) -> "RecentUse":
        made = RecentUse(*self.counts.shape)
        made.counts[:], made.tokens = self.counts, self.tokens
        return made
