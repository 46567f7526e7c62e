"""The field tool_choice of chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..chat.wish import Tool, ToolChoice


def read_tool_choice(value: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> ToolChoice:
    """What tool_choice asks for. Raises InvalidRequestError that names the field."""
    if value is None or value == "none":
        return ToolChoice("auto" if value is None else "none")
    if not tools:
        raise InvalidRequestError("tool_choice needs tools", "tool_choice")
    if value in ("auto", "required"):
        return ToolChoice("auto" if value == "auto" else "required")
    if isinstance(value, Mapping) and value.get("type") == "allowed_tools":
        return _allowed(value.get("allowed_tools"), tools)
    if isinstance(value, Mapping) and value.get("type") == "function":
        return ToolChoice("named", _name_in(value, tools, "tool_choice"))
    raise InvalidRequestError(
        'tool_choice must be "none", "auto", "required", a function by its name, or allowed_tools', "tool_choice"
    )


def _allowed(value: Any, tools: Sequence[Tool]) -> ToolChoice:
    mode = value.get("mode") if isinstance(value, Mapping) else None
    chosen = value.get("tools") if isinstance(value, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(chosen, list) or not chosen:
        raise InvalidRequestError(
            'tool_choice.allowed_tools must have mode "auto" or "required" and tools, a list', "tool_choice"
        )
    names = frozenset(_name_in(each, tools, "tool_choice") for each in chosen)
    return ToolChoice("auto" if mode == "auto" else "required", allowed=names)


def _name_in(value: Any, tools: Sequence[Tool], param: str) -> str:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequestError(f"{param} must name a function: {{'name': ...}}", param)
    if all(tool.name != name for tool in tools):
        raise InvalidRequestError(f"{param} names the function {name[:80]!r}, which is not among the tools", param)
    return name
