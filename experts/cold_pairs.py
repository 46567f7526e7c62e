"""ColdPairs: the pairs (token, choice) of a split layer that the CPU team computes, and where all outputs meet."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..placement.shape import CPU
from .buffers import Routes
from .segment import Segment

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColdPairs:
    """Of one layer; all but `choice` and `segment` are the same for all of them.

    choice: its number among MoE layers. outs: float32 [pairs, padded hidden size] on the host: first those of cold
    pairs, in the order of experts, then those that accelerators send. shown: int64 [pairs], the choices as the segment
    reads them, hot ones hidden. The segment leaves the pair of each of its outputs in `routes.order`.
    """

    routes: Routes
    choice: int
    outs: torch.Tensor
    shown: Indices
    segment: Segment

    def choices(self, tokens: int) -> Indices:
        """int64 [pairs]: experts of the first tokens."""
        ids: Indices = self.routes.ids[self.choice, : tokens * self.routes.top_k]
        return ids

    def show(self, ids: Indices, lies: NDArray[np.int8]) -> int:
        """Hide the pairs of choices `ids` that lie on accelerators; how many are left."""
        cold = lies == CPU
        self.shown[: len(ids)] = np.where(cold, ids, self.routes.num_experts)
        return int(np.count_nonzero(cold))
