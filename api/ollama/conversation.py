"""Ollama's messages as those that chat templates take."""

import json
from collections.abc import Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..chat.bounds import MAX_MESSAGES, MAX_TOOLS, check_count, is_object, objects, text_of


class Calls:
    """The calls of a conversation that no result has answered yet. Ollama's have no ids, but templates want some."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []  # id and name
        self._count = 0

    def add(self, given: Any, name: str) -> str:
        """The id of a new call: its own, or a new one."""
        call_id = given if isinstance(given, str) and given else f"call{self._count:05}"
        self._count += 1
        self._open.append((call_id, name))
        return call_id

    def answer(self, given: Any, name: Any) -> tuple[str, str] | None:
        """The call that a result belongs to: by id, else by name, else the first that is open."""
        matches = [call for call in self._open if call[0] == given] or [call for call in self._open if call[1] == name]
        call = next(iter(matches or self._open), None)
        if call is not None:
            self._open.remove(call)
        return call


def read_messages(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The messages of a chat. Raises InvalidRequestError that names the message."""
    check_count(messages, MAX_MESSAGES, "messages")
    calls = Calls()
    return tuple(_message(message, calls, f"messages[{i}]") for i, message in enumerate(messages))


def _message(message: dict[str, Any], calls: Calls, where: str) -> dict[str, Any]:
    if message.get("images"):
        raise InvalidRequestError(f"{where}.images is not supported: the model takes text only", "messages")
    content = message.get("content")
    result = {"role": message.get("role"), "content": "" if content is None else text_of(message, "content", where)}
    if message.get("thinking"):
        result["reasoning_content"] = text_of(message, "thinking", where)
    if message.get("tool_calls"):
        sent = objects(message["tool_calls"], MAX_TOOLS, f"{where}.tool_calls")
        result["tool_calls"] = [_call(call, calls, f"{where}.tool_calls[{i}]") for i, call in enumerate(sent)]
    if result["role"] == "tool":
        call = calls.answer(message.get("tool_call_id"), message.get("tool_name"))
        if call is not None:
            result["tool_call_id"], result["name"] = call
    return result


def _call(call: dict[str, Any], calls: Calls, where: str) -> dict[str, Any]:
    function = call.get("function")
    if not is_object(function) or not is_object(function.get("arguments") or {}):
        raise InvalidRequestError(f"{where}.function must have a name and arguments, an object", "messages")
    name = text_of(function, "name", f"{where}.function")
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    called = {"name": name, "arguments": arguments}
    return {"id": calls.add(call.get("id"), name), "type": "function", "function": called}
