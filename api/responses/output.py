"""Output items of the Responses API: what the blocks of a choice look like."""

from typing import Any

from ..chat.blocks import Block
from .items import Item

ITEM_TYPES = {"reasoning": "reasoning", "text": "message", "call": "function_call"}
GROWS = {
    "reasoning": "response.reasoning_text.delta",
    "text": "response.output_text.delta",
    "call": "response.function_call_arguments.delta",
}
ENDS = {
    "reasoning": "response.reasoning_text.done",
    "text": "response.output_text.done",
    "call": "response.function_call_arguments.done",
}


def item_of(block: Block, item_id: str, status: str) -> Item:
    """A block as it is now; one that has just opened has no content."""
    item: Item = {"type": ITEM_TYPES[block.kind], "id": item_id, "status": status}
    if block.kind == "call":
        return {**item, "call_id": block.call_id, "name": block.name, "arguments": block.text}
    content = [part_of(block)] if block.pieces else []
    if block.kind == "reasoning":
        return {**item, "summary": [], "content": content}
    return {**item, "role": "assistant", "content": content}


def part_of(block: Block) -> dict[str, Any]:
    """The only part of text or reasoning."""
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


def place_in(block: Block) -> dict[str, Any]:
    """What the events of a part say beside their text."""
    if block.kind == "call":
        return {}
    return {"content_index": 0} if block.kind == "reasoning" else {"content_index": 0, "logprobs": []}
