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

Floats = NDArray[np.float32]


@dataclass(slots=True)
class OpenRequest:
    """reader: of the prompt's rows, if they are wanted. guide: along its structure, if it has one."""

    sampler: Sampler
    timer: RequestTimer
    reader: PromptReader | None
    guide: Guide | None

    def sample(self, row: Floats) -> tuple[int, TokenLogprobs | None]:
        """A token that the rules and the structure allow. Raises EngineError."""
        if self.guide is None:
            return self.sampler.sample(row)
        return self.sampler.sample(row, self.guide.allowed(row.size))

    def follow(self, token: int) -> Follow:
        """What must come after it. Raises EngineError."""
        if self.guide is None:
            return NOTHING
        follow = self.guide.accept(token)
        for forced in follow.tokens:
            self.sampler.skip(forced)
        return follow
