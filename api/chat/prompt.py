"""The prompt text of a wish."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..service import Service
from ..tools.call_ids import fit_ids
from ..tools.formats import HARMONY
from .wish import ChatWish, Tool

_CUT = "\ue000cut\ue000"  # private characters, which no template looks at


def prompt_text(service: Service, wish: ChatWish) -> str:
    """What the model's template makes of a wish. Raises RequestError."""
    messages = fit_ids(wish.messages, service.speech.format)
    if service.speech.format is HARMONY:
        messages = [_with_thinking(message) for message in messages]
    if wish.continue_final_message:
        messages = [*messages[:-1], _marked(messages)]
    text = service.chat_template.render(
        messages,
        tools=[tool_object(tool) for tool in wish.tools] if wish.tool_choice.mode != "none" else None,
        add_generation_prompt=wish.add_generation_prompt and not wish.continue_final_message,
        kwargs=_template_kwargs(service, wish),
    )
    if not wish.continue_final_message:
        return text
    head, mark, _ = text.rpartition(_CUT)
    if not mark:
        raise InvalidRequestError(
            "the model's chat template does not show the last message, so it cannot be continued",
            "continue_final_message",
        )
    return head


def tool_object(tool: Tool) -> Mapping[str, Any]:
    """A tool as templates expect it: OpenAI's object."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _with_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Templates of harmony call reasoning `thinking`; beside calls they take either that or content."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return message
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    content = message.get("content")
    if not isinstance(reasoning, str) or not isinstance(content, str | None):
        return message
    if message.get("tool_calls") and content:
        return {**message, "thinking": f"{reasoning}\n\n{content}", "content": ""}
    return {**message, "thinking": reasoning}


def _marked(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The last message, its end marked."""
    last = messages[-1] if messages else {}
    content = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], Mapping):
        content = content[0].get("text")
    if not isinstance(content, str | None) or not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise InvalidRequestError(
            "continue_final_message needs a last message of the assistant with a text as content",
            "continue_final_message",
        )
    return {**last, "content": (content or "") + _CUT}


def _template_kwargs(service: Service, wish: ChatWish) -> dict[str, Any]:
    """What templates call by various names is given under all of them."""
    kwargs = dict(wish.template_kwargs)
    effort, enabled = wish.thinking.effort, wish.thinking.enabled
    if effort is not None:
        if service.speech.format is HARMONY:  # which knows low, medium and high
            effort = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}.get(effort, effort)
        kwargs.setdefault("reasoning_effort", effort)
    if enabled is not None:
        kwargs.setdefault("enable_thinking", enabled)
        kwargs.setdefault("thinking", enabled)
    return kwargs
