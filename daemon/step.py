"""StepPlan: what the scheduler hands to the runner for one step of the model, and the contracts around it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's share of a step.

    tokens: ids to compute, at positions start, start + 1, ...; start tokens are already in the KV cache.
    block_table: block ids that cover positions 0 .. start + len(tokens) - 1, `block_size` positions each.
    sample: the logits after the last token are wanted, to draw the next one. scored, states: the logits after each of
    so many last tokens are wanted, or their states after the model's last norm.
    """

    request_id: str
    tokens: Sequence[int]
    start: int
    block_table: Sequence[int]
    sample: bool
    scored: int = 0
    states: int = 0

    @property
    def rows(self) -> int:
        """Of logits: after each of so many last tokens."""
        return max(self.scored, int(self.sample))

    @property
    def decodes(self) -> bool:
        """Whether it is one more token of a sequence, not a part of a prompt."""
        return self.sample and self.start > 0 and len(self.tokens) == 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: every chunk once. The sum of tokens is at most the runner's max_step_tokens."""

    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)


class Runner(Protocol):
    """Computes steps. One thread calls it. Blocks are written at `block_table[position // block_size]`."""

    vocab_size: int
    block_size: int
    num_blocks: int
    max_step_tokens: int
    max_context: int

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        """Run one step; the logits [sum of the chunks' rows, vocab_size], chunk by chunk.

        The array is valid until the next call. Raises CacheLostError where what earlier steps left in the blocks is
        gone; another plan can be run.
        """
        ...

    def states(self) -> NDArray[np.float32]:
        """Of the last step [sum of the chunks' states, hidden size], chunk by chunk: tokens after the last norm."""
        ...

    def check_integrity(self, cached: Iterable[int]) -> None:
        """Audit where blocks lie; those of `cached` must hold something. Raises RuntimeError with the numbers."""
        ...

    def close(self) -> None:
        """Stop worker threads and free memory."""
        ...


class StepRecorder(Protocol):
    """Keeps something of each step. The runner's thread calls it."""

    def record(self, plan: StepPlan) -> None:
        """Look at what the runner has just run."""
        ...
