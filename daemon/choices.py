"""Choices: which experts the tokens of a step went to, and which of them belong to prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .step import Chunk

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Choices:
    """Views of a runner's memory that its next step overwrites.

    ids: int64, weights: float32, both [MoE layers, tokens, top_k], tokens in the order of the plan. narrowed: the last
    of the layers was run only for the tokens whose logits were wanted; it has them in its first places, in order.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    narrowed: bool

    def of(self, rows: Rows, logit_rows: Rows) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Per layer the ids and weights [rows, top_k] of some tokens; the last layer's are fewer if it is narrowed."""
        layers = [(ids[rows], weights[rows]) for ids, weights in zip(self.ids, self.weights, strict=True)]
        if self.narrowed:
            layers[-1] = self.ids[-1][logit_rows], self.weights[-1][logit_rows]
        return layers


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step's tokens and logits by phase; decode and logit_decode are of the same tokens."""

    prefill: Rows
    decode: Rows
    logit_prefill: Rows
    logit_decode: Rows

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> "StepRows":
        sizes = np.array([len(chunk.tokens) for chunk in chunks], np.intp)
        decodes = np.array([chunk.decodes for chunk in chunks], np.bool_)
        sampled = np.array([chunk.sample for chunk in chunks], np.bool_)
        is_decode, logit_decodes = np.repeat(decodes, sizes), decodes[sampled]
        split = (np.flatnonzero(mask) for mask in (~is_decode, is_decode, ~logit_decodes, logit_decodes))
        return cls(*split)
