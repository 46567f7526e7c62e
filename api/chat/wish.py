"""ChatWish: what a client asks of a conversation, in no dialect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ...daemon.structure import Structure


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. parameters: a JSON schema of one object. strict: arguments must obey it."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """auto: the model may call; none: it may not; required: it must; named: it must call `name`, once. allowed: names
    of the tools among which it may choose; None for all."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None
    allowed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """enabled: None leaves it to the model's template. effort: such as "low", as the template knows it. budget: tokens
    of reasoning at most. budget_param: the client's name of it, empty if the client can do without where a model's
    reasoning cannot be bounded."""

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None
    budget_param: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWish:
    """messages: as `daemon.chat_messages` takes them (OpenAI's form, reasoning as `reasoning_content`). sampling: the
    fields of `daemon.request.SamplingParams` that were given. max_tokens: None is all that fit; `max_tokens_param` is
    the client's name of it. priority: lower is sooner. hide_reasoning: it is not told."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    thinking: Thinking = Thinking()
    structure: Structure | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    n: int = 1
    stream: bool = False
    cache_salt: str = ""
    priority: int = 0
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    hide_reasoning: bool = False
