"""What is made of the rows of a prompt: log-probabilities of its tokens, or one embedding of all."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import EngineError
from .messages import Embedding, PromptLogprobs, Submit, TokenLogprobs
from .sampler import log_probabilities

Floats = NDArray[np.float32]


class PromptReader(Protocol):
    """Takes the rows of a prompt as steps compute them, in order and each once."""

    def take(self, rows: Floats) -> None:
        """rows: the next ones, logits or states [positions, ...]."""
        ...

    def message(self) -> PromptLogprobs | Embedding | None:
        """What has come of it, once, when the prompt is complete."""
        ...


class PromptScorer:
    """Log-probabilities of the prompt's tokens. Those of a token are what drawing it there would have given."""

    def __init__(self, request_id: str, prompt: Sequence[int], top: int) -> None:
        self._request_id, self._prompt, self._top = request_id, prompt, top
        self._logprobs: list[TokenLogprobs | None] = [None]
        self._told = False

    def take(self, rows: Floats) -> None:
        """Raises EngineError if a logit is NaN or infinite."""
        for row in rows[: len(self._prompt) - len(self._logprobs)]:  # the last position's tell of the answer
            _check(row)
            self._logprobs.append(log_probabilities(row, self._prompt[len(self._logprobs)], self._top))

    def message(self) -> PromptLogprobs | None:
        if self._told or len(self._logprobs) < len(self._prompt):
            return None
        self._told = True
        return PromptLogprobs(self._request_id, tuple(self._logprobs))


class PromptPooler:
    """The mean of the states of all positions, or the last one's. Sums go position by position, so that they do not
    depend on how the prompt was cut."""

    def __init__(self, request_id: str, positions: int) -> None:
        self._request_id, self._left, self._positions = request_id, positions, positions
        self._sum: NDArray[np.float64] | None = None

    def take(self, rows: Floats) -> None:
        """Raises EngineError if a state is NaN or infinite."""
        total = np.zeros(rows.shape[1], np.float64) if self._sum is None else self._sum
        for row in rows:
            total += row
        _check(total)
        self._sum, self._left = total, self._left - len(rows)

    def message(self) -> Embedding | None:
        if self._left or self._sum is None:
            return None
        values, self._sum = (self._sum / self._positions).astype(np.float32), None
        return Embedding(self._request_id, values)


def _check(values: Floats | NDArray[np.float64]) -> None:
    if not np.isfinite(values).all():
        raise EngineError("the model gave a NaN or infinite value for a token of the prompt")


def reader_of(submit: Submit) -> PromptReader | None:
    """Of what a request wants of its prompt; None for nothing."""
    if submit.pooling is not None:
        return PromptPooler(submit.request_id, len(submit.prompt) if submit.pooling == "mean" else 1)
    top = submit.sampling.prompt_logprobs
    return None if top is None else PromptScorer(submit.request_id, submit.prompt, top)
