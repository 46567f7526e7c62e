"""Dialects: how an endpoint writes a conversation, and how the server's exchange drives it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...daemon.messages import Token, Usage
from ..generation import Piece
from ..stream import Answer
from .events import ChatEvent, ChatPiece
from .join import join_events
from .reading import ChatReading


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatUsage:
    """Token counts of a request, over all its choices; a prompt with several choices counts once."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One whole choice: its events with adjacent ones of a kind joined, the last one Ended; see `ChatPiece`."""

    events: tuple[ChatEvent, ...]
    tokens: tuple[Token, ...]
    starts: tuple[int, ...]


class Dialect(Protocol):
    """Writes one endpoint's objects. One object serves one request and may keep state between pieces."""

    def opening(self) -> list[dict[str, Any]]:
        """The objects that come first, once there is something to tell."""
        ...

    def chunks(self, piece: ChatPiece) -> list[dict[str, Any]]:
        """The objects of a piece. Each choice's last piece ends with Ended."""
        ...

    def closing(self, usage: ChatUsage) -> list[dict[str, Any]]:
        """The objects that close the stream, after the end of every choice."""
        ...

    def whole(self, answers: Sequence[ChatAnswer], usage: ChatUsage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...


class Narrator:
    """The exchange's encoder: hands to a dialect what the readings understood."""

    def __init__(self, dialect: Dialect, readings: Sequence[ChatReading]) -> None:
        self._dialect = dialect
        self._readings = readings

    def opening(self) -> list[dict[str, Any]]:
        """As the dialect says."""
        return self._dialect.opening()

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The dialect's words for the events of a piece."""
        return self._dialect.chunks(ChatPiece(piece.index, join_events(piece.events), piece.tokens, piece.starts))

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """As the dialect says."""
        return self._dialect.closing(self._usage(usage))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The dialect's body."""
        chat_answers = [ChatAnswer(join_events(each.events), each.tokens, each.starts) for each in answers]
        return self._dialect.whole(chat_answers, self._usage(usage))

    def _usage(self, usage: Usage) -> ChatUsage:
        return ChatUsage(
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=sum(reading.reasoning_tokens for reading in self._readings),
        )
