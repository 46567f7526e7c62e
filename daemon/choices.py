"""Choices: which experts the tokens of a step went to, and which tokens belong to prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .step import Chunk

Ids = NDArray[np.int64]
Weights = NDArray[np.float32]
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class StepRows:
    """Which rows of a step are of tokens that were decoded, the others being of prompts: among its tokens, and among
    its logits. A token that was decoded has both."""

    prefill: Rows
    decode: Rows
    prefill_logits: Rows
    decode_logits: Rows

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> "StepRows":
        sizes = np.array([len(chunk.tokens) for chunk in chunks], np.intp)
        decodes = np.array([chunk.decodes for chunk in chunks], np.bool_)
        rows = np.array([chunk.rows for chunk in chunks], np.intp)
        states = np.zeros(sum(chunk.states for chunk in chunks), np.bool_)  # come last, and are of prompts
        tokens, logits = np.repeat(decodes, sizes), np.concatenate((np.repeat(decodes, rows), states))
        return cls(*(np.flatnonzero(mask) for mask in (~tokens, tokens, ~logits, logits)))


@dataclass(frozen=True, slots=True)
class Choices:
    """Views of a runner's memory, which its next step overwrites.

    ids, weights: [MoE layers, tokens, top_k], tokens in the order of the plan. narrowed: the last of these layers was
    run only for the tokens whose logits were wanted; it has them in its first places, in the order of the logits.
    """

    ids: Ids
    weights: Weights
    narrowed: bool

    def decode(self, rows: StepRows) -> tuple[Ids, Weights]:
        """Of the tokens that were decoded: [MoE layers, tokens, top_k] each."""
        if not self.narrowed:
            return self.ids[:, rows.decode], self.weights[:, rows.decode]
        last = rows.decode_logits
        ids = np.concatenate((self.ids[:-1, rows.decode], self.ids[-1:, last]))
        return ids, np.concatenate((self.weights[:-1, rows.decode], self.weights[-1:, last]))

    def prefill(self, rows: StepRows) -> tuple[list[Ids], list[Weights]]:
        """Of the tokens of prompts: per MoE layer [tokens, top_k] each, fewer of them where the layer is narrowed."""
        taken = [rows.prefill] * len(self.ids)
        if self.narrowed:
            taken[-1] = rows.prefill_logits
        ids = [layer[chosen] for layer, chosen in zip(self.ids, taken, strict=True)]
        return ids, [layer[chosen] for layer, chosen in zip(self.weights, taken, strict=True)]


class Choosing(Protocol):
    """A runner that tells which experts the tokens of its last step went to."""

    def choices(self) -> Choices | None: ...
