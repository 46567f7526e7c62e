"""Input items of the Responses API: in one uniform form, and as the messages that chat templates take."""

import uuid
from collections.abc import Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..chat.bounds import MAX_BLOCKS, MAX_MESSAGES, MAX_NAME, check_count, objects, text_of

Item = dict[str, Any]
_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_id(kind: str) -> str:
    """A fresh id for an item of this type."""
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex}"


def read_items(value: str | list[Item]) -> tuple[Item, ...]:
    """The checked items of a request, each with its type, its id and its content as a list. Raises
    InvalidRequestError that names the item."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    check_count(value, MAX_MESSAGES, "input")
    items = tuple(_item(item, f"input[{i}]") for i, item in enumerate(value))
    if sum(len(item.get("content") or ()) for item in items) > MAX_BLOCKS:
        raise InvalidRequestError(f"the input has more than {MAX_BLOCKS} parts", "input")
    return items


def _item(item: Item, where: str) -> Item:
    kind = item.get("type") or ("message" if "role" in item else None)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise InvalidRequestError(f"{where} has the type {str(kind)[:80]!r}, which is not supported", where)
    given = item.get("id")
    name = given if isinstance(given, str) and 0 < len(given) <= MAX_NAME else new_id(str(kind))
    return {"type": kind, "id": name, **reader(item, where)}


def _message(item: Item, where: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequestError(f"{where}.role must be one of {', '.join(_ROLES)}", where)
    kind = "output_text" if role == "assistant" else "input_text"
    texts = _texts(item.get("content"), f"{where}.content")
    content = [{"type": kind, "text": text, **({"annotations": []} if role == "assistant" else {})} for text in texts]
    return {"role": role, "status": "completed", "content": content}


def _call(item: Item, where: str) -> Item:
    return {
        "call_id": text_of(item, "call_id", where, MAX_NAME),
        "name": text_of(item, "name", where, MAX_NAME),
        "arguments": text_of(item, "arguments", where),
        "status": "completed",
    }


def _call_output(item: Item, where: str) -> Item:
    output = item.get("output")
    text = output if isinstance(output, str) else "\n".join(_texts(output, f"{where}.output"))
    return {"call_id": text_of(item, "call_id", where, MAX_NAME), "output": text, "status": "completed"}


def _reasoning(item: Item, where: str) -> Item:
    texts = {key: _texts(item.get(key) or [], f"{where}.{key}") for key in ("content", "summary")}
    return {
        "summary": [{"type": "summary_text", "text": text} for text in texts["summary"]],
        "content": [{"type": "reasoning_text", "text": text} for text in texts["content"]],
    }


_READERS = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _call_output,
    "reasoning": _reasoning,
}


def _texts(value: Any, where: str) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(objects(value, MAX_BLOCKS, where))]


def _part(part: Item, where: str) -> str:
    kind = part.get("type")
    if kind == "refusal":
        return text_of(part, "refusal", where)
    if kind not in _TEXTS:
        raise InvalidRequestError(f"{where} is a part of type {str(kind)[:80]!r}; this server takes text only", where)
    return text_of(part, "text", where)


def messages_of(instructions: str | None, items: Sequence[Item]) -> tuple[dict[str, Any], ...]:
    """The conversation as messages. What one turn of the model consists of is one message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] != "assistant":
            _add_foreign(messages, item["role"], _joined(item["content"], "\n"))
        elif kind == "function_call_output":
            name = names.get(item["call_id"])
            message = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append(message if name is None else {**message, "name": name})
        else:
            if kind == "function_call":
                names[item["call_id"]] = item["name"]
            _add_own(messages, item)
    return tuple(messages)


def _add_foreign(messages: list[dict[str, Any]], role: str, text: str) -> None:
    """Templates know one system message, the first; so what clients put at the beginning becomes that one."""
    leading = bool(messages) and all(message["role"] in ("system", "developer") for message in messages)
    if leading and role in ("system", "developer"):
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": role, "content": text})


def _add_own(messages: list[dict[str, Any]], item: Item) -> None:
    """Add reasoning, text or a call to the turn of the model that is open, or begin another."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    said = last is not None and (bool(last["content"]) or "tool_calls" in last)
    if last is None or (said and item["type"] != "function_call"):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if item["type"] == "message":
        last["content"] = _joined(item["content"], "")
    elif item["type"] == "reasoning":
        text = _joined(item["content"] or item["summary"], "\n")
        last["reasoning_content"] = last.get("reasoning_content", "") + text
    else:
        function = {"name": item["name"], "arguments": item["arguments"]}
        last.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})


def _joined(parts: Sequence[Item], separator: str) -> str:
    return separator.join(part["text"] for part in parts)
