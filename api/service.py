"""Service: one loaded model, as requests are served by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..daemon.chat_template import ChatTemplate
from ..daemon.client import EngineClient
from ..daemon.events import EventLog
from ..daemon.structures import Structures
from ..daemon.tokenizer import Tokenizer
from ..placement.trace import Phase
from .chat.speech import Speech


@dataclass(slots=True, kw_only=True)
class Limits:
    """Bounds on what one client may take; a reload of the settings changes them in place. Sizes in bytes, times in
    seconds.

    max_body: of one request; max_bodies: of all that are open. body_timeout: how long a client may take to send one.
    max_choices: completions of one request, over all its prompts. ping_interval: longest silence of a stream.
    write_timeout: how long a client may leave a full connection unread before its request is aborted. step_limit: a
    step of the model that runs for longer hangs, as far as /health is concerned. max_responses, max_response_bytes: of
    those that /v1/responses keeps, of all clients together; these two are read once.
    """

    max_body: int = 8 * 2**20
    max_bodies: int = 64 * 2**20
    body_timeout: float = 60.0
    max_choices: int = 128
    ping_interval: float = 10.0
    write_timeout: float = 60.0
    step_limit: float = 300.0
    max_responses: int = 1000
    max_response_bytes: int = 64 * 2**20

    def become(self, other: "Limits") -> None:
        """Take the values of another."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One served model.

    created: seconds since the epoch. status: what is told of it. plan, experts: what the routes below /admin of these
    names answer. reasoning_names: the fields of OpenAI's messages in which reasoning is told. speech: how the model
    writes reasoning and calls.
    """

    client: EngineClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    structures: Structures
    model_id: str
    created: int
    events: EventLog
    status: Callable[[], Mapping[str, Any]]
    plan: Callable[[], Mapping[str, Any] | None]
    experts: Callable[[Phase], Mapping[str, Any]]
    limits: Limits = field(default_factory=Limits)
    reasoning_names: tuple[str, ...] = ("reasoning_content",)
    speech: Speech = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "speech", Speech(self.tokenizer, self.chat_template, self.events))

    @property
    def max_context(self) -> int:
        """Tokens of prompt and answer together."""
        return self.client.max_context

    @property
    def vocab_size(self) -> int:
        """Number of logits; token ids lie below it."""
        return self.client.vocab_size

    def unready(self) -> str | None:
        """Why requests cannot be served now, None if they can."""
        stats = self.client.stats()
        if stats.state != "ready":
            return stats.reason or f"the engine is {stats.state}"
        age = stats.step_age()
        return f"a step of the model has been running for {age:.0f} s" if age > self.limits.step_limit else None
