"""MessagesDialect: what happens to a choice, as Anthropic's message or its stream of events."""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

from ..chat.blocks import Block, Blocks, Change, blocks_of
from ..chat.dialect import ChatAnswer, ChatUsage
from ..chat.events import ChatPiece, Ended

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesDialect:
    """One object writes one answer. prompt_tokens: what the stream says at its beginning, when nobody knows yet how
    many of them are cached; its end tells that."""

    def __init__(self, model: str, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model}
        self._blocks = Blocks()

    def opening(self) -> list[dict[str, Any]]:
        """message_start, with an empty message."""
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        usage = _usage_object(self._prompt_tokens, 0, 0)
        return [{"type": "message_start", "message": {**self._head, **empty, "usage": usage}}]

    def chunks(self, piece: ChatPiece) -> list[dict[str, Any]]:
        """The events of blocks that open, grow and close, one after another."""
        return [chunk for change in self._blocks.take(piece.events) for chunk in _change(change)]

    def closing(self, usage: ChatUsage) -> list[dict[str, Any]]:
        """message_delta and message_stop."""
        delta = _end(self._blocks.ended)
        return [{"type": "message_delta", "delta": delta, "usage": _usage(usage)}, {"type": "message_stop"}]

    def whole(self, answers: Sequence[ChatAnswer], usage: ChatUsage) -> dict[str, Any]:
        """The message."""
        blocks = blocks_of(answers[0].events)
        content = [_content_block(block) for block in blocks.row]
        return {**self._head, "content": content, **_end(blocks.ended), "usage": _usage(usage)}


def _end(ended: Ended | None) -> dict[str, Any]:
    assert ended is not None  # the last event of a choice
    met = ended.stop_string
    reason = "stop_sequence" if ended.reason == "stop" and met is not None else _REASONS[ended.reason]
    return {"stop_reason": reason, "stop_sequence": met if reason == "stop_sequence" else None}


def _usage(usage: ChatUsage) -> dict[str, int]:
    return _usage_object(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _usage_object(prompt: int, cached: int, output: int) -> dict[str, int]:
    """input_tokens are those that were computed: together with the cached ones they are the prompt."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _change(change: Change) -> list[dict[str, Any]]:
    block = change.block
    if change.what == "opens":
        return [{"type": "content_block_start", "index": block.index, "content_block": _content_block(block)}]
    if change.what == "grows":
        return [_delta(block, _DELTAS[block.kind], change.text)]
    stop = {"type": "content_block_stop", "index": block.index}
    return [_delta(block, _SIGNATURE, _signature(block)), stop] if block.kind == "reasoning" else [stop]


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
_SIGNATURE = ("signature_delta", "signature")


def _delta(block: Block, names: tuple[str, str], text: str) -> dict[str, Any]:
    kind, key = names
    return {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, key: text}}


def _content_block(block: Block) -> dict[str, Any]:
    """A block as it is now; one that has just opened is empty."""
    text = block.text
    if block.kind == "text":
        return {"type": "text", "text": text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": _signature(block) if text else ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": block.arguments}


def _signature(block: Block) -> str:
    """Clients drop thoughts without one. This server takes any back."""
    return hashlib.sha256(block.text.encode()).hexdigest()
