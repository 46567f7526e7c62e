"""TraceBuilder: counts the choices of running steps; one writer, no I/O."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .trace import SAMPLE_TOKENS, Phase, PhaseCounts, RoutingTrace, TraceError, empty_trace


class TraceBuilder:
    """Collects routing step by step; `trace` gives what came so far, `clear` begins anew.

    Of decode tokens the last `limit` are kept as they were chosen, in a ring. Methods raise TraceError for arrays of the
    wrong shape or with an expert that does not exist, and then have counted nothing of the step.
    """

    def __init__(
        self, fingerprint: str, layers: tuple[int, ...], num_experts: int, top_k: int, limit: int = SAMPLE_TOKENS
    ) -> None:
        self._empty = empty_trace(fingerprint, layers, num_experts, top_k)
        self._phases = self._empty.phases
        self._ring = np.empty((limit, len(layers), top_k), np.uint16)
        self._owner = np.empty(limit, np.int64)
        self._written = 0  # tokens written to the ring, those overwritten included

    def add_decode(self, ids: NDArray[np.integer], weights: NDArray[np.floating], sequences: NDArray[np.int64]) -> None:
        """One step of decode tokens. ids, weights: [layers, tokens, top_k]; sequences: [tokens], a number that tells the
        sequence of each token from all others."""
        raise NotImplementedError

    def add_prefill(self, ids: Sequence[NDArray[np.integer]], weights: Sequence[NDArray[np.floating]]) -> None:
        """One step of prompt tokens. ids, weights: for each layer [tokens, top_k], or one array [layers, tokens, top_k];
        layers may have different numbers of tokens, none too."""
        raise NotImplementedError

    def trace(self) -> RoutingTrace:
        """A copy of what came since the last `clear`."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forgets all counts and the sample."""
        raise NotImplementedError
