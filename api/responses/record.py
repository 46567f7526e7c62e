"""The response object, in which a client finds its own settings again."""

import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal

from ..chat.dialect import ChatUsage
from .items import Item
from .request import ResponsesRequest

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseRecord:
    """Makes the response object of one request, at any time of its life."""

    def __init__(self, model: str, body: ResponsesRequest) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self._settings = {
            "id": self.id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "background": False,
            **_echo(body),
        }

    def show(
        self, status: Status, output: Sequence[Item], usage: ChatUsage | None = None, error: Item | None = None
    ) -> dict[str, Any]:
        """The object, with its status and what there is of an answer."""
        return {
            **self._settings,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(output),
            "usage": None if usage is None else _usage(usage),
        }


def _echo(body: ResponsesRequest) -> dict[str, Any]:
    reasoning, text = body.reasoning, body.text
    wanted = None if text is None or text.format is None else text.format
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {
            "format": {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True),
            "verbosity": (text and text.verbosity) or "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [{"parameters": None, "strict": False, **tool} for tool in body.tools or []],
        "top_logprobs": 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _usage(usage: ChatUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
