"""Clock: how long the parts of an answer took, as Ollama's clients want to know."""

import time
from collections.abc import Sequence

from ...daemon.text import TextDelta
from ...daemon.tokenizer import Detokenizer
from ..chat.events import ChatEvent
from ..generation import Reading, StopReason


class Clock:
    """A reading that notes when the first text comes, and leaves the reading to another one."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._started = time.monotonic_ns()
        self._first: int | None = None

    def detokenizer(self) -> Detokenizer:
        """The reading's own."""
        return self._reading.detokenizer()

    @property
    def enough(self) -> bool:
        """As the reading says."""
        return self._reading.enough

    def push(self, delta: TextDelta) -> Sequence[ChatEvent]:
        """As the reading says."""
        if self._first is None:
            self._first = time.monotonic_ns()
        return self._reading.push(delta)

    def end(self, reason: StopReason, stop_string: str | None) -> Sequence[ChatEvent]:
        """As the reading says."""
        return self._reading.end(reason, stop_string)

    def durations(self) -> dict[str, int]:
        """Nanoseconds up to now. A model that is served needs no loading."""
        now = time.monotonic_ns()
        first = now if self._first is None else self._first
        return {
            "total_duration": now - self._started,
            "load_duration": 0,
            "prompt_eval_duration": first - self._started,
            "eval_duration": now - first,
        }
