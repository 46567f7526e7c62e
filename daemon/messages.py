"""The only things that cross between the HTTP side and the engine thread.

In: Submit, Abort, Ask. Out, per request: PromptLogprobs or Embedding if asked for, Token*, then exactly one terminal
message, Finished or Failed.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .request import SamplingParams

if TYPE_CHECKING:
    from .constraint import Constraint
    from .thoughts import ThoughtLimit

Pooling = Literal["mean", "last"]
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Ask for a completion of `prompt` (token ids). `cache_salt` separates prefix caches. tenant: on whose account;
    tenants get equal shares.

    priority: lower is sooner, within a tenant, see `waiting`. pooling: ask for an Embedding instead, and for no token
    by `sampling`. constraint: `sampling.structure` as `daemon.structures` has compiled it. thoughts: how long the model
    may reason, if that is bounded.
    """

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: frozenset[int]
    cache_salt: str = ""
    tenant: str = ""
    priority: int = 0
    pooling: Pooling | None = None
    constraint: "Constraint | None" = None
    thoughts: "ThoughtLimit | None" = None


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget a request wherever it is. It ends in Finished(reason); "stop" says that its text has met a stop string."""

    request_id: str
    reason: FinishReason = "abort"


class Command:
    """What operators ask of the engine, see `attendants`; each sort of command is a class."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Have a command obeyed between steps. `answer` gets its result, or the error that says why not."""

    command: Command
    answer: "Future[Any]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities of one position: the chosen token, and the top alternatives best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of each token of the prompt, given those before it; None for the first one. Comes before the first Token."""

    request_id: str
    logprobs: tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """Of the prompt: float32 [hidden size], the states after the model's last norm, pooled and not scaled."""

    request_id: str
    values: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request; `cached` prompt tokens came from the prefix cache."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The normal end. `stop_token` is the end-of-sequence or stop token id that ended it, if one did.

    That token was generated and is counted in usage, but is not sent as a Token; its log-probabilities come here if
    those of tokens were asked for.
    """

    request_id: str
    reason: FinishReason
    usage: Usage
    stop_token: int | None = None
    stop_logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The abnormal end: the request cannot go on; `error` is from `daemon.errors`."""

    request_id: str
    error: Exception


ToEngine = Submit | Abort | Ask
FromEngine = Token | PromptLogprobs | Embedding | Finished | Failed
