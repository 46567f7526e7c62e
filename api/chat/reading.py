"""ChatReading: one choice's text as events of a conversation."""

from collections.abc import Iterable, Sequence

from ...daemon.text import TextDelta
from ...daemon.tokenizer import Detokenizer, Tokenizer
from ..generation import StopReason
from .events import CallArguments, CallBegan, ChatEvent, Ended, Reader, Reasoning
from .json_depth import JsonDepth


class ChatReading:
    """Runs a reader over one choice.

    shown: control tokens that the reader needs to see. single: the choice ends with its first call. hide_reasoning: it
    is counted, and not told.
    """

    def __init__(
        self,
        reader: Reader,
        tokenizer: Tokenizer,
        shown: Iterable[int] = (),
        *,
        single: bool = False,
        hide_reasoning: bool = False,
    ) -> None:
        self._reader = reader
        self._tokenizer = tokenizer
        self._shown = tuple(shown)
        self._single = single
        self._hide_reasoning = hide_reasoning
        self._arguments = JsonDepth()
        self._called = False
        self._undecided = 0  # tokens of which no event has told yet what they are
        self.reasoning_tokens = 0
        self.enough = False

    def detokenizer(self) -> Detokenizer:
        """A fresh one that shows what the reader needs to see."""
        return self._tokenizer.detokenizer(self._shown) if self._shown else self._tokenizer.detokenizer()

    def push(self, delta: TextDelta) -> Sequence[ChatEvent]:
        """What can be said after this piece of text."""
        events = self._take(self._reader.push(delta.text)) if delta.text else []
        self._undecided += len(delta.tokens)
        if events:
            if isinstance(events[-1], Reasoning):
                self.reasoning_tokens += self._undecided
            self._undecided = 0
        return self._visible(events)

    def end(self, reason: StopReason, stop_string: str | None) -> Sequence[ChatEvent]:
        """What was held back, and the end."""
        events = self._take(self._reader.finish())
        by_itself = reason == "stop" and stop_string is None
        return [*self._visible(events), Ended("tool_calls" if by_itself and self._called else reason, stop_string)]

    def _visible(self, events: list[ChatEvent]) -> list[ChatEvent]:
        return [event for event in events if not isinstance(event, Reasoning)] if self._hide_reasoning else events

    def _take(self, events: Sequence[ChatEvent]) -> list[ChatEvent]:
        """The events up to the end of the call that is to be the only one."""
        taken: list[ChatEvent] = []
        for event in events:
            if self.enough or (self._single and self._called and not isinstance(event, CallArguments)):
                self.enough = True
                break
            taken.append(event)
            self._called = self._called or isinstance(event, CallBegan)
            if self._single and isinstance(event, CallArguments) and self._arguments.closes(event.json_text):
                self.enough = True
        return taken
