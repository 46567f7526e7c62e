"""TraceBuilder: counts the choices of running steps; one writer, no I/O."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .trace import SAMPLE_TOKENS, Phase, RoutingTrace, TraceError, empty_trace


class TraceBuilder:
    """Collects routing step by step; `trace` gives what came so far, `clear` begins anew.

    Of decode tokens the last `limit` are kept as they were chosen, in a ring. Methods raise TraceError for arrays of
    the wrong shape, experts that do not exist and weights that are no numbers, and have counted nothing of the step
    then.
    """

    def __init__(
        self, fingerprint: str, layers: tuple[int, ...], num_experts: int, top_k: int, limit: int = SAMPLE_TOKENS
    ) -> None:
        self._total = empty_trace(fingerprint, layers, num_experts, top_k)
        self._first = np.arange(len(layers)) * num_experts  # of each layer's experts in one row of all
        self._ring = np.empty((limit, len(layers), top_k), np.uint16)
        self._owner = np.empty(limit, np.int64)
        self._written = 0  # tokens written to the ring, those since overwritten included

    def add_decode(
        self,
        ids: NDArray[np.integer],
        weights: NDArray[np.floating],
        sequences: NDArray[np.int64],
        sizes: Sequence[int] = (),
    ) -> NDArray[np.int64]:
        """One step of decode tokens; how many of them went to each expert, [layers, experts].

        ids, weights: [layers, tokens, top_k]; sequences: int64 [tokens], a number that tells the sequence of each token
        from all others since the last `clear`. sizes: of several steps, which cost less together, how many of the
        tokens each had.
        """
        expected = (len(self._first), len(sequences), self._total.top_k)
        if ids.shape != expected or weights.shape != expected:
            raise TraceError(f"choices have the shape {ids.shape}, weights {weights.shape}, instead of {expected}")
        if sizes and sum(sizes) != len(sequences):
            raise TraceError(f"steps of {sum(sizes)} tokens in all cannot be those of {len(sequences)} tokens")
        self._check_ids(ids)
        flat = ids.astype(np.int64)
        flat += self._first[:, None, None]
        counts = self._count("decode", flat.ravel(), weights.ravel(), len(sequences))
        distinct = self._distinct(flat, sizes) if sizes else np.count_nonzero(counts, axis=1)
        self._end_steps("decode", len(sizes) or 1, distinct)
        self._keep(ids.transpose(1, 0, 2), sequences)
        return counts

    def add_prefill(
        self, ids: Sequence[NDArray[np.integer]], weights: Sequence[NDArray[np.floating]]
    ) -> NDArray[np.int64]:
        """One step of prompt tokens; how many of them went to each expert, [layers, experts].

        ids, weights: for each layer [tokens, top_k], or one array [layers, tokens, top_k]; layers may have different
        numbers of tokens, none too.
        """
        shapes = [layer.shape for layer in ids]
        top_k = self._total.top_k
        if [layer.shape for layer in weights] != shapes or len(shapes) != len(self._first):
            raise TraceError(f"choices and weights of a step differ in shape, or are not of {len(self._first)} layers")
        if not all(len(shape) == 2 and shape[1] == top_k for shape in shapes):
            raise TraceError(f"choices have the shapes {shapes}, not [tokens, {top_k}] in each layer")
        for layer in ids:
            self._check_ids(layer)
        flat = np.concatenate([layer.ravel().astype(np.int64) + at for layer, at in zip(ids, self._first, strict=True)])
        tokens = np.array([shape[0] for shape in shapes], np.float64)
        counts = self._count("prefill", flat, np.concatenate([layer.ravel() for layer in weights]), tokens)
        self._end_steps("prefill", 1, np.count_nonzero(counts, axis=1))
        return counts

    def trace(self) -> RoutingTrace:
        """A copy of what came since the last `clear`. The sample goes sequence by sequence, each in its own order, the
        one that began first in front."""
        limit = len(self._owner)
        kept = min(self._written, limit)
        order = np.arange(self._written - kept, self._written) % limit
        _, first, which = np.unique(self._owner[order], return_index=True, return_inverse=True)
        grouped = np.argsort(first[which], kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(which)[np.argsort(first)])))[:-1]
        return replace(
            self._total,
            phases={name: phase.times(1.0) for name, phase in self._total.phases.items()},
            sample=self._ring[order[grouped]],
            starts=starts.astype(np.int64),
        )

    def clear(self) -> None:
        """Forgets all counts and the sample."""
        total = self._total
        self._total = empty_trace(total.fingerprint, total.layers, total.num_experts, total.top_k)
        self._written = 0

    def _check_ids(self, ids: NDArray[np.integer]) -> None:
        if ids.size and not 0 <= ids.min() <= ids.max() < self._total.num_experts:
            raise TraceError(
                f"experts {ids.min()} to {ids.max()} were chosen, but the model has 0 to {self._total.num_experts - 1}"
            )

    def _count(
        self, name: Phase, flat: NDArray[np.int64], weights: NDArray[np.floating], tokens: int | NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """flat: experts numbered through all layers. How many of the tokens went to each, [layers, experts]."""
        phase = self._total.phases[name]
        shape = phase.counts.shape
        counts = np.bincount(flat, minlength=phase.counts.size).reshape(shape)
        mass = np.bincount(flat, weights, minlength=phase.counts.size).reshape(shape)
        if not math.isfinite(mass.sum()):
            raise TraceError("router weights of a step are not all finite; its choices are not counted")
        phase.counts += counts
        phase.mass += mass
        phase.tokens += tokens
        return counts

    def _end_steps(self, name: Phase, count: int, distinct: NDArray[np.int64]) -> None:
        phase = self._total.phases[name]
        phase.steps += count
        phase.distinct += distinct

    def _distinct(self, flat: NDArray[np.int64], sizes: Sequence[int]) -> NDArray[np.int64]:
        """Experts touched in each layer, summed over steps of so many tokens. flat: [layers, tokens, top_k]."""
        shape = self._total.phases["decode"].counts.shape
        distinct = np.full(shape[0], flat.shape[2] * sizes.count(1))  # those of one token differ
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            if size > 1:
                touched = np.bincount(flat[:, end - size : end].ravel(), minlength=shape[0] * shape[1])
                distinct += np.count_nonzero(touched.reshape(shape), axis=1)
        return distinct

    def _keep(self, ids: NDArray[np.integer], sequences: NDArray[np.int64]) -> None:
        """ids: [tokens, layers, top_k]."""
        limit = len(self._owner)
        first = max(len(sequences) - limit, 0)
        at = np.arange(self._written + first, self._written + len(sequences)) % limit
        self._ring[at] = ids[first:]
        self._owner[at] = sequences[first:]
        self._written += len(sequences)
