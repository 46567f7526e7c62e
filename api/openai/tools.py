"""The fields tools and tool_choice of chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..chat.wish import Tool, ToolChoice

_MAX_TOOLS = 1024
_MAX_NAME = 256


def read_tools(values: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The tools. Raises InvalidRequestError that names the field at fault."""
    if values is None:
        return ()
    if not 0 < len(values) <= _MAX_TOOLS:
        raise InvalidRequestError(
            f"tools holds {len(values)} tools; it must hold 1 to {_MAX_TOOLS}, or be left out", "tools"
        )
    tools = tuple(_tool(value, f"tools[{place}]") for place, value in enumerate(values))
    seen: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequestError(f"tools[{place}] has the name {tool.name!r} a second time", "tools")
        seen.add(tool.name)
    return tools


def _tool(value: Mapping[str, Any], where: str) -> Tool:
    function = value.get("function")
    if value.get("type") != "function" or not isinstance(function, Mapping):
        raise InvalidRequestError(f'{where} must be {{"type": "function", "function": {{...}}}}', where)
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable() or " " in name:
        raise InvalidRequestError(
            f"{where}.function.name must be 1 to {_MAX_NAME} printable characters without a space",
            f"{where}.function.name",
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(f"{where}.function.description must be a string", f"{where}.function.description")
    parameters = check_parameters(function.get("parameters"), f"{where}.function.parameters")
    return Tool(name, description or "", parameters, strict=function.get("strict") is True)


def check_parameters(schema: Any, where: str) -> Mapping[str, Any]:
    """A tool's parameters as far as every use of them needs: a JSON schema of an object. None is one without any.

    Raises InvalidRequestError that names `where`.
    """
    if schema is None:
        return {"type": "object", "properties": {}}
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(f"{where} must be a JSON schema, an object", where)
    if schema.get("type", "object") != "object":
        raise InvalidRequestError(f'{where}.type must be "object": arguments have names', f"{where}.type")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise InvalidRequestError(f"{where}.properties must be an object", f"{where}.properties")
    bad = next((name for name, each in properties.items() if not isinstance(each, Mapping | bool)), None)
    if bad is not None:
        raise InvalidRequestError(f"{where}.properties.{bad} must be a JSON schema", f"{where}.properties.{bad}")
    return schema


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
