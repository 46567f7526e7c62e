"""Chat messages in the one form that templates can rely on."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import InvalidRequestError

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_REASONING_NAMES = ("reasoning", "reasoning_content")


def normalise(
    messages: Sequence[Mapping[str, Any]], *, knows_developer: bool = False, text_arguments: bool = False
) -> list[dict[str, Any]]:
    """Copies of the messages, made uniform.

    content: a string; None becomes "", text parts are joined by newlines. tool_calls: absent when empty; arguments are
    an object where they are valid JSON for one, or always a string if `text_arguments`. Reasoning stands under both
    its names. The role developer becomes system unless the template knows it. Raises InvalidRequestError, naming the
    message.
    """
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", "messages")
    convert = _text_arguments if text_arguments else _object_arguments
    return [_message(message, f"messages[{i}]", knows_developer, convert) for i, message in enumerate(messages)]


def _message(
    message: Mapping[str, Any], where: str, knows_developer: bool, convert: Callable[[Any], Any]
) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(f"{where} must be an object with a role", "messages")
    if message["role"] not in _ROLES:  # most templates would pass it over in silence
        raise InvalidRequestError(
            f"{where}.role is {message['role'][:80]!r}; it must be one of {', '.join(_ROLES)}", "messages"
        )
    result = dict(message)
    if result["role"] == "developer" and not knows_developer:
        result["role"] = "system"
    result["content"] = _content(result.get("content"), f"{where}.content")
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls", convert)
    reasoning = next((result[name] for name in _REASONING_NAMES if result.get(name) is not None), None)
    for name in _REASONING_NAMES:
        result.pop(name, None)
        if reasoning is not None:
            result[name] = reasoning
    return result


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a string or a list of parts", "messages")
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise InvalidRequestError(f"{where} has type {kind!r}; this model takes parts of type 'text' only", "messages")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string", "messages")
    return text


def _tool_calls(calls: Any, where: str, convert: Callable[[Any], Any]) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidRequestError(f"{where} must be a list of objects", "messages")
    return [_tool_call(call, convert) for call in calls]


def _tool_call(call: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or "arguments" not in function:
        return dict(call)
    return {**call, "function": {**function, "arguments": convert(function["arguments"])}}


def _object_arguments(arguments: Any) -> Any:
    """OpenAI sends arguments as a JSON string; what is no object stays as it was sent."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _text_arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
