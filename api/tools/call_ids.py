"""Ids of calls in messages, as the model's own template wants them."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .formats import Format

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_NINE = re.compile(r"[A-Za-z0-9]{9}")


def fit_ids(messages: Sequence[Mapping[str, Any]], form: Format) -> list[Mapping[str, Any]]:
    """The messages with ids that the format's template takes. Ids from another server, or another model, change; which
    result belongs to which call does not."""
    if form.name not in ("mistral", "kimi_k2"):
        return list(messages)
    renamed: dict[str, str] = {}
    return [_message(message, renamed, form.name == "kimi_k2") for message in messages]


def _message(message: Mapping[str, Any], renamed: dict[str, str], numbered: bool) -> Mapping[str, Any]:
    if not isinstance(message, Mapping):
        return message
    calls, answered = message.get("tool_calls"), message.get("tool_call_id")
    changed: dict[str, Any] = dict(message)
    if isinstance(calls, list):
        changed["tool_calls"] = [_call(call, renamed, numbered) for call in calls]
    if isinstance(answered, str):
        changed["tool_call_id"] = renamed.get(answered, answered if numbered else _nine(answered))
    return changed


def _call(call: Any, renamed: dict[str, str], numbered: bool) -> Any:
    call_id = call.get("id") if isinstance(call, Mapping) else None
    if not isinstance(call_id, str):
        return call
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else ""
    renamed[call_id] = f"functions.{name}:{len(renamed)}" if numbered else _nine(call_id)
    return {**call, "id": renamed[call_id]}


def _nine(call_id: str) -> str:
    """Nine letters for any id, always the same."""
    if _NINE.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:9])
