"""Tools, and the choice among them, as the dialects spell them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from .bounds import MAX_NAME, MAX_TOOLS, check_count, is_object
from .wish import Tool, ToolChoice


def function_tools(values: Sequence[Mapping[str, Any]]) -> tuple[Tool, ...]:
    """Tools as OpenAI's chat and Ollama write them. Raises InvalidRequestError that names the field at fault."""
    check_count(values, MAX_TOOLS, "tools")
    tools = tuple(_function(value, f"tools[{place}]") for place, value in enumerate(values))
    check_tools(tools, ToolChoice())
    return tools


def _function(value: Mapping[str, Any], where: str) -> Tool:
    function = value.get("function")
    if value.get("type") != "function" or not is_object(function):
        raise InvalidRequestError(f'{where} must be {{"type": "function", "function": {{...}}}}', where)
    return make_tool(function, "parameters", f"{where}.function")


def make_tool(fields: dict[str, Any], schema_key: str, where: str) -> Tool:
    """A tool whose JSON schema stands under `schema_key`. Raises InvalidRequestError."""
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or " " in name:
        raise InvalidRequestError(
            f"{where}.name must be 1 to {MAX_NAME} printable characters without a space", f"{where}.name"
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(f"{where}.description must be a string", f"{where}.description")
    schema = _parameters(fields.get(schema_key), f"{where}.{schema_key}")
    return Tool(name, description or "", schema, strict=fields.get("strict") is True)


def _parameters(schema: Any, where: str) -> Mapping[str, Any]:
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


def check_tools(tools: tuple[Tool, ...], choice: ToolChoice) -> None:
    """Raises InvalidRequestError for names that occur twice, and for a choice that the tools do not allow."""
    names: set[str] = set()
    for place, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidRequestError(f"tools[{place}] has the name {tool.name!r} a second time", "tools")
        names.add(tool.name)
    if choice.mode in ("required", "named") and not tools:
        raise InvalidRequestError("tool_choice asks for a call, but there are no tools", "tool_choice")
    wanted = {str(choice.name)} if choice.mode == "named" else set(choice.allowed or ())
    missing = sorted(wanted - names)
    if missing:
        raise InvalidRequestError(f"tool_choice names {missing[0][:80]!r}, which is not among the tools", "tool_choice")
