"""StepCounts: what steps computed, by phase."""

from .pace import Pace
from .step import StepPlan


class StepCounts:
    """prefill_tokens: of prompts, and of what was computed again. decode_tokens: one for each step of a stream."""

    def __init__(self) -> None:
        self.steps = self.failed_steps = self.prefill_tokens = self.decode_tokens = 0
        self._prefill, self._decode = Pace(), Pace()

    def add(self, plan: StepPlan, seconds: float) -> None:
        """A step that did not fail. Only steps of one phase tell how fast that is."""
        decoded = sum(len(chunk.tokens) == 1 for chunk in plan.chunks)
        prefilled = plan.num_tokens - decoded
        self.steps += 1
        self.decode_tokens += decoded
        self.prefill_tokens += prefilled
        if not prefilled:
            self._decode.add(decoded, seconds)
        elif not decoded:
            self._prefill.add(prefilled, seconds)

    @property
    def decode_rate(self) -> float | None:
        """Tokens a second, of all streams together."""
        return self._decode.rate

    @property
    def prefill_rate(self) -> float | None:
        """Tokens a second."""
        return self._prefill.rate
