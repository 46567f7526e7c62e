"""From the body of a chat completion to a wish."""

from ...daemon.errors import InvalidRequestError
from ..chat.bounds import MAX_MESSAGES, check_count
from ..chat.tool_fields import function_tools
from ..chat.wish import ChatWish, Thinking
from ..service import Service
from .sampling import sampling_fields
from .schemas import ChatRequest, ReasoningFields
from .structures import structure_of
from .tool_choice import read_tool_choice

_NO_EFFORT = "none"
_NO_LIMIT = -1


def chat_wish(service: Service, body: ChatRequest) -> ChatWish:
    """What a client asks for. Raises InvalidRequestError that names the field."""
    check_count(body.messages, MAX_MESSAGES, "messages")
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message goes on with the last message, add_generation_prompt begins a new one; send one",
            "add_generation_prompt",
        )
    if body.tools == []:
        raise InvalidRequestError("tools is empty; it must hold one at least, or be left out", "tools")
    tools = function_tools(body.tools or ())
    limit, limit_name = body.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, limit_name = body.max_tokens, "max_tokens"
    return ChatWish(
        messages=tuple(body.messages),
        tools=tools,
        tool_choice=read_tool_choice(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        thinking=_thinking(body),
        structure=structure_of(service, body),
        sampling={
            **sampling_fields(body, service, logprobs_wanted(body)),
            "prompt_logprobs": body.prompt_logprobs,
        },
        max_tokens=limit,
        max_tokens_param=limit_name,
        n=1 if body.n is None else body.n,
        stream=bool(body.stream),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
        add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
        continue_final_message=bool(body.continue_final_message),
        template_kwargs=body.chat_template_kwargs or {},
        hide_reasoning=body.include_reasoning is False
        or (body.reasoning is not None and body.reasoning.exclude is True),
    )


def logprobs_wanted(body: ChatRequest) -> int | None:
    """How many alternatives of each token, None for no log-probabilities at all."""
    if not body.logprobs:
        if body.top_logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return None
    count = body.top_logprobs or 0
    if not 0 <= count <= 20:
        raise InvalidRequestError(f"top_logprobs is {count}; it must lie between 0 and 20", "top_logprobs")
    return count


def _thinking(body: ChatRequest) -> Thinking:
    """An effort of "none" turns thinking off."""
    reasoning = body.reasoning or ReasoningFields()
    effort = body.reasoning_effort or reasoning.effort
    budget, param = body.thinking_token_budget, "thinking_token_budget"
    if budget is None:
        budget, param = reasoning.max_tokens, "reasoning.max_tokens"
    return Thinking(
        enabled=False if effort == _NO_EFFORT else reasoning.enabled,
        effort=effort,
        budget=None if budget == _NO_LIMIT else budget,
        budget_param=param,
    )
