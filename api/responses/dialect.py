"""ResponsesDialect: what happens to a choice, as a response object or its stream of events."""

from collections.abc import Callable, Sequence
from typing import Any

from ..chat.blocks import Block, Blocks, Change
from ..chat.dialect import ChatAnswer, ChatUsage
from ..chat.events import ChatPiece
from ..errors import kind_of, message_of
from .items import Item, new_id
from .output import ENDS, GROWS, ITEM_TYPES, item_of, part_of, place_in
from .record import ResponseRecord, Status

_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponsesDialect:
    """One object writes one answer. ended: is given the final object, once, when the answer ends or fails.

    cancelled: set when a client cancels, before the engine ends the answer. final: the final object, once it is there.
    """

    def __init__(self, record: ResponseRecord, ended: Callable[[dict[str, Any]], None]) -> None:
        self.cancelled = False
        self.final: dict[str, Any] | None = None
        self._record = record
        self._ended = ended
        self._blocks = Blocks()
        self._ids: list[str] = []  # of the items, one for each block
        self._sequence = 0

    def now(self) -> dict[str, Any]:
        """The response object as it is now."""
        if self.final is not None:
            return self.final
        return self._record.show("cancelled" if self.cancelled else "in_progress", self._output("in_progress"))

    def opening(self) -> list[dict[str, Any]]:
        """response.created and response.in_progress."""
        empty = self._record.show("in_progress", [])
        return [self._event("response.created", response=empty), self._event("response.in_progress", response=empty)]

    def chunks(self, piece: ChatPiece) -> list[dict[str, Any]]:
        """The events of items that are added, grow and are done, one after another."""
        return [event for change in self._blocks.take(piece.events) for event in self._change(change)]

    def closing(self, usage: ChatUsage) -> list[dict[str, Any]]:
        """response.completed, or response.incomplete for an answer that was cut off."""
        response = self._final(usage)
        kind = "response.completed" if response["status"] == "completed" else "response.incomplete"
        return [self._event(kind, response=response)]

    def failure(self, error: Exception) -> dict[str, Any]:
        """response.failed."""
        told = {"code": _ERROR_CODES.get(kind_of(error).status, "server_error"), "message": message_of(error)}
        response = self._end(self._record.show("failed", self._output("incomplete"), error=told))
        return self._event("response.failed", response=response)

    def whole(self, answers: Sequence[ChatAnswer], usage: ChatUsage) -> dict[str, Any]:
        """The response object."""
        for change in self._blocks.take(answers[0].events):
            if change.what == "opens":
                self._ids.append(new_id(ITEM_TYPES[change.block.kind]))
        return self._final(usage)

    def _final(self, usage: ChatUsage) -> dict[str, Any]:
        status = self._status()
        output = self._output("completed" if status == "completed" else "incomplete")
        return self._end(self._record.show(status, output, usage))

    def _end(self, response: dict[str, Any]) -> dict[str, Any]:
        self._ended(response)
        self.final = response
        return response

    def _status(self) -> Status:
        if self.cancelled:
            return "cancelled"
        ended = self._blocks.ended
        return "incomplete" if ended is not None and ended.reason == "length" else "completed"

    def _output(self, last: str) -> list[Item]:
        """All items; only the last one can be unfinished, and has the status `last`."""
        named = list(zip(self._blocks.row, self._ids, strict=True))
        items = [item_of(block, name, "completed") for block, name in named[:-1]]
        return items + [item_of(block, name, last) for block, name in named[-1:]]

    def _change(self, change: Change) -> list[dict[str, Any]]:
        block = change.block
        if change.what == "opens":
            self._ids.append(new_id(ITEM_TYPES[block.kind]))
            return self._added(block)
        if change.what == "closes":
            return self._done(block)
        return [self._about(block, GROWS[block.kind], delta=change.text, **place_in(block))]

    def _added(self, block: Block) -> list[dict[str, Any]]:
        added = self._item_event("response.output_item.added", block, "in_progress")
        if block.kind == "call":
            return [added]
        return [added, self._about(block, "response.content_part.added", content_index=0, part=part_of(block))]

    def _done(self, block: Block) -> list[dict[str, Any]]:
        key = "arguments" if block.kind == "call" else "text"
        events = [self._about(block, ENDS[block.kind], **{key: block.text}, **place_in(block))]
        if block.kind == "call":
            events[0]["name"] = block.name
        else:
            events.append(self._about(block, "response.content_part.done", content_index=0, part=part_of(block)))
        status = "completed" if self._status() == "completed" else "incomplete"
        return [*events, self._item_event("response.output_item.done", block, status)]

    def _item_event(self, kind: str, block: Block, status: str) -> dict[str, Any]:
        item = item_of(block, self._ids[block.index], status)
        return self._event(kind, output_index=block.index, item=item)

    def _about(self, block: Block, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, item_id=self._ids[block.index], output_index=block.index, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number = self._sequence
        self._sequence += 1
        return {"type": kind, "sequence_number": number, **fields}
