"""Events of a conversation fed to a dialect as the pipeline feeds them, and requests to the dialects' endpoints."""

from collections.abc import Sequence
from typing import Any, Protocol

import orjson
from isotherm.api.chat.dialect import ChatAnswer, ChatUsage
from isotherm.api.chat.events import CallArguments, CallBegan, ChatEvent, ChatPiece, Ended, Reasoning, Text

USAGE = ChatUsage(prompt_tokens=10, cached_tokens=4, completion_tokens=7, reasoning_tokens=2)
CALL = (CallBegan(0, "call_1", "add"), CallArguments(0, '{"a":'), CallArguments(0, " 1}"))
EVERYTHING: tuple[ChatEvent, ...] = (
    Reasoning("I "),
    Reasoning("add."),
    Text("Let me"),
    Text(" see."),
    *CALL,
    CallBegan(1, "call_2", "sub"),
    CallArguments(1, "{}"),
    Ended("tool_calls"),
)


class AnyDialect(Protocol):
    def opening(self) -> list[dict[str, Any]]: ...

    def chunks(self, piece: ChatPiece) -> list[dict[str, Any]]: ...

    def closing(self, usage: ChatUsage) -> list[dict[str, Any]]: ...

    def whole(self, answers: Sequence[ChatAnswer], usage: ChatUsage) -> dict[str, Any]: ...


def streamed(dialect: AnyDialect, *events: ChatEvent, apart: bool = True) -> list[dict[str, Any]]:
    """All objects of a stream. apart: each event comes in a piece of its own, else all in one."""
    pieces = [(event,) for event in events] if apart else [events]
    chunks = dialect.opening()
    for piece in pieces:
        chunks += dialect.chunks(ChatPiece(0, piece))
    return chunks + dialect.closing(USAGE)


def whole(dialect: AnyDialect, *events: ChatEvent) -> dict[str, Any]:
    """The object of an answer that is not streamed."""
    return dialect.whole([ChatAnswer(events, (), ())], USAGE)


def sse(text: str) -> list[dict[str, Any]]:
    """The objects of a finished stream of named events. Checks that each is named as its type, and LF only."""
    assert "\r" not in text
    assert text.endswith("\n\n")
    frames = [frame for frame in text.split("\n\n")[:-1] if not frame.startswith(":")]
    pairs = [frame.split("\n") for frame in frames]
    objects = [orjson.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [each["type"] for each in objects]
    return objects
