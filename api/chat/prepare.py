"""From a wish to a job: the one way of every dialect into the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Submit
from ...daemon.request import SamplingParams
from ..framing import OPENAI, Framing
from ..openai import sampling
from ..openai.prompts import encode
from ..service import Service
from ..stream import Job
from .dialect import Dialect, Narrator
from .plain import PlainReader
from .reading import ChatReading
from .wish import ChatWish, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A checked wish, ready for the engine: `submits` and `readings` hold one for each choice."""

    submits: tuple[Submit, ...]
    readings: tuple[ChatReading, ...]
    stream: bool

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt, which all choices share."""
        return len(self.submits[0].prompt)

    def job(self, dialect: Dialect, framing: Framing = OPENAI) -> Job:
        """What an `Exchange` runs."""
        return Job(
            submits=self.submits,
            choices_per_prompt=len(self.submits),
            stream=self.stream,
            encoder=Narrator(dialect, self.readings),
            framing=framing,
            readings=self.readings,
        )


def prepare(service: Service, wish: ChatWish, tenant: str) -> Conversation:
    """Check, render and tokenise a wish. tenant: whose prefix cache it is. Raises RequestError that names the field."""
    sampling.check_choices(service, wish.n, 1)
    if wish.structure is not None and wish.tools and wish.tool_choice.mode != "none":
        raise InvalidRequestError("an answer of a given form cannot call tools; leave tools out", "tools")
    prompt = prompt_ids(service, wish)
    param = "messages" if wish.max_tokens is None else wish.max_tokens_param
    max_tokens = sampling.room_for(service, prompt, wish.max_tokens, None, param)
    params = SamplingParams(**wish.sampling, max_tokens=max_tokens, structure=wish.structure)
    readings = (ChatReading(PlainReader(), service.tokenizer) for _ in range(wish.n))
    return Conversation(
        submits=sampling.submits(service, [(prompt, params)], wish.n, tenant + wish.cache_salt, wish.priority),
        readings=tuple(readings),
        stream=wish.stream,
    )


def prompt_ids(service: Service, wish: ChatWish) -> tuple[int, ...]:
    """The token ids of a wish's prompt. Raises RequestError."""
    return encode(service, prompt_text(service, wish), "messages", add_special=False)


def prompt_text(service: Service, wish: ChatWish) -> str:
    """What the model's template makes of a wish. Raises RequestError."""
    kwargs = dict(wish.template_kwargs)
    thinking = wish.thinking
    if thinking.effort is not None:
        kwargs.setdefault("reasoning_effort", thinking.effort)
    if thinking.enabled is not None:
        kwargs.setdefault("enable_thinking", thinking.enabled)
    return service.chat_template.render(
        wish.messages,
        tools=[tool_object(tool) for tool in wish.tools] if wish.tool_choice.mode != "none" else None,
        add_generation_prompt=wish.add_generation_prompt,
        kwargs=kwargs,
    )


def tool_object(tool: Tool) -> Mapping[str, Any]:
    """A tool as templates expect it: OpenAI's object."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
