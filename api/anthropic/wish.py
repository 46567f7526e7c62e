"""From a request to /v1/messages to a ChatWish."""

from typing import Any, Literal

import orjson

from ...daemon.errors import InvalidRequestError
from ...daemon.structure import Structure
from ..chat.bounds import MAX_TOOLS, check_count, is_object
from ..chat.tool_fields import check_tools, make_tool
from ..chat.wish import ChatWish, Thinking, Tool, ToolChoice
from ..sampling import stop_strings
from .conversation import read_conversation
from .request import CountRequest, MessagesRequest

_MODES: dict[str, Literal["auto", "required", "none"]] = {"auto": "auto", "any": "required", "none": "none"}


def read_wish(body: CountRequest) -> ChatWish:
    """The wish of a checked body. Raises InvalidRequestError that names the field."""
    tools = _tools(body.tools or [])
    choice, parallel = _tool_choice(body.tool_choice)
    check_tools(tools, choice)
    messages = read_conversation(body.system, body.messages).messages
    prefilled = messages[-1]["role"] == "assistant" if messages else False
    if prefilled and "tool_calls" in messages[-1]:
        raise InvalidRequestError("the last message calls tools; their results must follow in a user's", "messages")
    given = _generation_fields(body) if isinstance(body, MessagesRequest) else {}
    return ChatWish(
        messages=tuple(messages),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        thinking=_thinking(body),
        structure=_structure(body),
        add_generation_prompt=not prefilled,
        continue_final_message=prefilled,
        **given,
    )


def _generation_fields(body: MessagesRequest) -> dict[str, Any]:
    thinking = body.thinking
    if thinking is not None and (thinking.budget_tokens or 0) >= max(body.max_tokens, 1):
        raise InvalidRequestError("thinking.budget_tokens must be less than max_tokens", "thinking")
    sampling = body.model_dump(include={"temperature", "top_k", "top_p"}, exclude_none=True)
    if body.stop_sequences:
        sampling["stop"] = stop_strings(body.stop_sequences, "stop_sequences")
    return {"max_tokens": body.max_tokens, "stream": bool(body.stream), "sampling": sampling}


def _tools(tools: list[dict[str, Any]]) -> tuple[Tool, ...]:
    check_count(tools, MAX_TOOLS, "tools")
    return tuple(_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))


def _tool(tool: dict[str, Any], where: str) -> Tool:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequestError(f"{where}.type is {str(kind)[:80]!r}; only tools of the client are supported", where)
    if not is_object(tool.get("input_schema")):
        raise InvalidRequestError(f"{where}.input_schema must be a JSON schema", where)
    return make_tool(tool, "input_schema", where)


def _tool_choice(value: dict[str, Any] | None) -> tuple[ToolChoice, bool]:
    """The choice, and whether the model may call several tools at once."""
    if value is None:
        return ToolChoice(), True
    kind, parallel = value.get("type"), not value.get("disable_parallel_tool_use")
    if kind == "tool" and isinstance(value.get("name"), str):
        return ToolChoice("named", value["name"]), parallel
    if kind == "tool" or not isinstance(kind, str) or kind not in _MODES:
        problem = "tool_choice must have the type auto, any, none, or tool with a name"
        raise InvalidRequestError(problem, "tool_choice")
    return ToolChoice(_MODES[kind]), parallel


def _thinking(body: CountRequest) -> Thinking:
    effort = None if body.output_config is None else body.output_config.effort
    if body.thinking is None or body.thinking.type == "adaptive":
        return Thinking(effort=effort)
    if body.thinking.type == "disabled":
        return Thinking(enabled=False, effort=effort)
    return Thinking(enabled=True, effort=effort, budget=body.thinking.budget_tokens)


def _structure(body: CountRequest) -> Structure | None:
    wanted = body.output_format or (body.output_config and body.output_config.format)
    return Structure("json_schema", orjson.dumps(wanted.schema_).decode()) if wanted else None
