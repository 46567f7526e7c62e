"""TokenBans: the tokens that a request may not draw next, whatever the model says."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .request import SamplingParams

Floats = NDArray[np.float32]
Ints = NDArray[np.intp]


class TokenBans:
    """Of `allowed_token_ids` and `bad_words`. A word of several tokens bans its last one where the others came last."""

    def __init__(self, params: SamplingParams) -> None:
        self._allowed = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        self._singles = _ids({word[0] for word in params.bad_words if len(word) == 1})
        self._words = [word for word in params.bad_words if len(word) > 1]

    def __bool__(self) -> bool:
        return self._allowed is not None or self._singles.size > 0 or bool(self._words)

    @property
    def reach(self) -> int:
        """How many tokens of the output matter."""
        return max((len(word) - 1 for word in self._words), default=0)

    def apply(self, scores: Floats, output: Sequence[int]) -> None:
        """Set the scores [vocab] of what is banned to minus infinity. output: its last tokens, at least `reach`."""
        if self._allowed is not None:
            kept = scores[self._allowed]
            scores[:] = -np.inf
            scores[self._allowed] = kept
        scores[self._singles] = -np.inf
        tail = tuple(output)
        for word in self._words:
            if tail[len(tail) - len(word) + 1 :] == word[:-1] and len(tail) >= len(word) - 1:
                scores[word[-1]] = -np.inf


def _ids(ids: frozenset[int] | set[int]) -> Ints:
    return np.asarray(sorted(ids), dtype=np.intp)
