"""Tools and the choice among them, as the dialects beside OpenAI's chat spell them."""

from typing import Any

from ...daemon.errors import InvalidRequestError
from ..openai.tools import check_parameters
from .bounds import MAX_NAME
from .wish import Tool, ToolChoice


def make_tool(fields: dict[str, Any], schema_key: str, where: str) -> Tool:
    """A tool whose JSON schema stands under `schema_key`. Raises InvalidRequestError."""
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or " " in name:
        raise InvalidRequestError(f"{where}.name must be 1 to {MAX_NAME} printable characters without a space", where)
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError(f"{where}.description must be a string", where)
    schema = check_parameters(fields.get(schema_key), f"{where}.{schema_key}")
    return Tool(name, description or "", schema, strict=fields.get("strict") is True)


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
