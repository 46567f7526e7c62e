"""Blocks: the events of a choice as a row of runs of one kind, for dialects that open and close each in the stream."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import from_json

from .events import CallArguments, CallBegan, ChatEvent, Ended, Text

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """index: its place in the row. call_id, name: of a call."""

    kind: Kind
    index: int
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that is in it so far: of a call, the JSON of its arguments."""
        return "".join(self.pieces)

    @property
    def arguments(self) -> dict[str, Any]:
        """A call's arguments as an object: as much of it as came, if the answer was cut off. What a model wrote in its
        place stands under "unparsed", since clients take nothing but objects."""
        try:
            value = from_json(self.text or "{}", allow_partial=True)
        except ValueError:
            value = None
        return value if isinstance(value, dict) else {"unparsed": self.text}


@dataclass(frozen=True, slots=True)
class Change:
    """A block opens, grows by `text` or closes. At most one is open at any time, and none opens twice."""

    what: Literal["opens", "grows", "closes"]
    block: Block
    text: str = ""


class Blocks:
    """The row. `ended` is there once the choice has ended."""

    def __init__(self) -> None:
        self.row: list[Block] = []
        self.ended: Ended | None = None
        self._open: Block | None = None

    def take(self, events: Iterable[ChatEvent]) -> Iterator[Change]:
        """What the events change. The caller must exhaust it before the next ones."""
        for event in events:
            if isinstance(event, Ended):
                self.ended = event  # before the last block closes, since its status may depend on it
                yield from self.close()
            elif isinstance(event, CallBegan):
                yield from self._begin("call", event.call_id, event.name)
            elif isinstance(event, CallArguments):
                yield from self._grow("call", event.json_text)
            else:
                yield from self._grow("text" if isinstance(event, Text) else "reasoning", event.text)

    def close(self) -> Iterator[Change]:
        """Close the block that is open, if one is."""
        block, self._open = self._open, None
        if block is not None:
            yield Change("closes", block)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[Change]:
        yield from self.close()
        self._open = Block(kind, len(self.row), call_id, name)
        self.row.append(self._open)
        yield Change("opens", self._open)

    def _grow(self, kind: Kind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        assert self._open is not None
        if text:
            self._open.pieces.append(text)
            yield Change("grows", self._open, text)


def blocks_of(events: Iterable[ChatEvent]) -> Blocks:
    """The row of a choice that has ended."""
    blocks = Blocks()
    for _ in blocks.take(events):
        pass
    return blocks
