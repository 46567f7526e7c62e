"""From a request to /v1/responses to a ChatWish."""

from collections.abc import Sequence
from typing import Any

import orjson

from ...daemon.errors import InvalidRequestError
from ...daemon.structure import Structure
from ..chat.bounds import MAX_METADATA, MAX_TOOLS, check_count, objects, text_of
from ..chat.tool_fields import check_tools, make_tool
from ..chat.wish import ChatWish, Thinking, Tool, ToolChoice
from ..fields import FieldNotes
from .items import Item, messages_of
from .request import HARMLESS, INCLUDABLE, REFUSED, SAMPLING, ResponsesRequest


def check_options(body: ResponsesRequest, notes: FieldNotes) -> None:
    """Raises InvalidRequestError for what this server cannot do, by its name."""
    notes.check({**(body.model_extra or {}), "top_logprobs": body.top_logprobs}, REFUSED, HARMLESS)
    foreign = [name for name in body.include or () if name not in INCLUDABLE]
    if foreign:
        raise InvalidRequestError(f"include holds {foreign[0][:80]!r}, which this server does not have", "include")
    if body.truncation not in (None, "auto", "disabled"):
        raise InvalidRequestError("truncation must be 'auto' or 'disabled'", "truncation")
    metadata = body.metadata or {}
    if len(metadata) > MAX_METADATA or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise InvalidRequestError(
            f"metadata may have {MAX_METADATA} pairs, keys of 64 and values of 512 characters", "metadata"
        )


def read_wish(body: ResponsesRequest, items: Sequence[Item]) -> ChatWish:
    """The wish for a conversation of these items. Raises InvalidRequestError that names the field."""
    tools = _tools(body.tools or [])
    choice = _tool_choice(body.tool_choice)
    check_tools(tools, choice)
    messages = messages_of(body.instructions, items)
    if not messages:
        raise InvalidRequestError("input must hold at least one item", "input")
    return ChatWish(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        thinking=_thinking(body),
        structure=_structure(body),
        sampling=body.model_dump(include=SAMPLING, exclude_none=True),
        max_tokens=body.max_output_tokens,
        max_tokens_param="max_output_tokens",
        stream=bool(body.stream),
    )


def _tools(tools: list[dict[str, Any]]) -> tuple[Tool, ...]:
    check_count(tools, MAX_TOOLS, "tools")
    return tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))


def _tool(tool: dict[str, Any], where: str) -> Tool:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequestError(f"{where}.type is {str(kind)[:80]!r}; only functions are supported", where)
    return make_tool(tool, "parameters", where)


def _tool_choice(value: str | dict[str, Any] | None) -> ToolChoice:
    if value is None or value == "auto":
        return ToolChoice()
    if value == "none":
        return ToolChoice("none")
    if value == "required":
        return ToolChoice("required")
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, dict) and kind == "function":
        return ToolChoice("named", text_of(value, "name", "tool_choice"))
    if isinstance(value, dict) and kind == "allowed_tools" and value.get("mode") in ("auto", "required"):
        allowed = objects(value.get("tools"), MAX_TOOLS, "tool_choice.tools")
        names = frozenset(text_of(tool, "name", f"tool_choice.tools[{i}]") for i, tool in enumerate(allowed))
        return ToolChoice(value["mode"], allowed=names)
    raise InvalidRequestError(
        "tool_choice must be none, auto, required, or an object of type function or allowed_tools", "tool_choice"
    )


def _thinking(body: ResponsesRequest) -> Thinking:
    effort = None if body.reasoning is None else body.reasoning.effort
    return Thinking(enabled=False if effort == "none" else None, effort=None if effort == "none" else effort)


def _structure(body: ResponsesRequest) -> Structure | None:
    wanted = None if body.text is None else body.text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Structure("json_schema", '{"type":"object"}')
    if wanted.type != "json_schema" or wanted.schema_ is None:
        raise InvalidRequestError(
            "text.format must have the type text, json_object, or json_schema with a schema", "text.format"
        )
    return Structure("json_schema", orjson.dumps(wanted.schema_).decode())
