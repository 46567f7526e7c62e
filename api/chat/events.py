"""What happens to one choice of a conversation. Every dialect's encoder writes these in its own words.

A choice is a row of events: reasoning and text in any order, calls one after another, each begun once, then exactly one
Ended. What a model wrote is never lost: what no reader understands is Text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...daemon.messages import Token

EndReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegan:
    """The model calls a tool. index: 0, 1 ... in the choice. name: one of the request's tools."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of the call that began last: JSON text. All pieces of a call together are one object."""

    index: int
    json_text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """tool_calls: at least one call began, and the model ended by itself. stop_string: the one that was met."""

    reason: EndReason
    stop_string: str | None = None


ChatEvent = Text | Reasoning | CallBegan | CallArguments | Ended


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """News of one choice. tokens: those that it reports, with their log-probabilities if these were asked for; starts:
    where each token's own text begins, in characters of all that the model wrote."""

    index: int
    events: tuple[ChatEvent, ...]
    tokens: tuple[Token, ...] = ()
    starts: tuple[int, ...] = ()


class Reader(Protocol):
    """Makes events of the text that a model writes, as it comes. What it makes in the end does not depend on where the
    text was cut. Adjacent events of a kind may be joined. It never raises for what a model may write."""

    def push(self, text: str) -> Sequence[ChatEvent]:
        """What can be said now. A reader holds back no more than what may yet turn out to be its own syntax."""
        ...

    def finish(self) -> Sequence[ChatEvent]:
        """All that was held back, at the end of the text: no Ended."""
        ...
