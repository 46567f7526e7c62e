"""OpenRequest: what the engine keeps of a request beside the scheduler's sequence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .guide import Guide
from .messages import TokenLogprobs
from .metrics import RequestTimer
from .prompt_rows import PromptReader
from .sampler import Sampler
from .sequence import NOTHING, Follow
from .thoughts import Thoughts

Floats = NDArray[np.float32]


@dataclass(slots=True)
class OpenRequest:
    """reader: of the prompt's rows, if they are wanted. guide: along its structure, if it has one. thoughts: if their
    length is bounded."""

    sampler: Sampler
    timer: RequestTimer
    reader: PromptReader | None
    guide: Guide | None
    thoughts: Thoughts | None = None

    def sample(self, row: Floats) -> tuple[int, TokenLogprobs | None]:
        """A token that the rules and the structure allow. Raises EngineError."""
        due = None if self.thoughts is None else self.thoughts.due
        if due is not None:
            return due, self.sampler.take(row, due)
        if self.guide is None:
            return self.sampler.sample(row)
        return self.sampler.sample(row, self.guide.allowed(row.size))

    def follow(self, token: int) -> Follow:
        """What must come after it. Raises EngineError."""
        follow = NOTHING if self.guide is None else self.guide.accept(token)
        for forced in follow.tokens:
            self.sampler.skip(forced)
        if self.thoughts is not None:
            for each in (token, *follow.tokens):
                self.thoughts.accept(each)
        return follow
