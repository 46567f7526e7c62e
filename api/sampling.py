"""What every dialect asks of its sampling fields, and the Submits made of them."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

from ..daemon.errors import ContextLengthError, InvalidRequestError
from ..daemon.messages import Submit
from ..daemon.request import SamplingParams
from .errors import UnknownModelError
from .service import Service

_ALL = -1
_MAX_STOP_STRINGS = 64
_MAX_STOP_CHARACTERS = 4096  # of all together: each choice prepares and carries a matcher for every one


def check_model(service: Service, model: str | None) -> None:
    """Raises UnknownModelError unless the model is the served one; none means that one."""
    if model and model != service.model_id:
        raise UnknownModelError(f"the model {model!r} is not served here; this server has {service.model_id!r}")


def room_for(
    service: Service, prompt: Sequence[int], wanted: int | None, default: int | None, param: str, *, least: int = 1
) -> int:
    """How many tokens may be generated: `wanted` (-1: all that fit), else `default` (None: all that fit) cut to the
    room that is left. least: that may be wanted.

    Raises InvalidRequestError for less, ContextLengthError if the prompt alone, or with `wanted`, does not fit the
    context.
    """
    room = service.max_context - len(prompt)
    if room < 1:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens; with at least one to generate it exceeds the context of "
            f"{service.max_context}",
            param,
        )
    if wanted == _ALL:
        return room
    if wanted is None:
        return room if default is None else min(default, room)
    if wanted < least:
        raise InvalidRequestError(f"{param} is {wanted}; it must be at least {least}, or -1 for all that fit", param)
    if wanted > room:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens and {param} is {wanted}; together they exceed the context of "
            f"{service.max_context}",
            param,
        )
    return wanted


def stop_strings(stop: str | list[str] | None, param: str = "stop") -> tuple[str, ...]:
    """The texts of a stop field, as many as are allowed."""
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(texts) > _MAX_STOP_STRINGS:
        raise InvalidRequestError(f"{param} has {len(texts)} strings; at most {_MAX_STOP_STRINGS} are allowed", param)
    length = sum(map(len, texts))
    if length > _MAX_STOP_CHARACTERS:
        raise InvalidRequestError(
            f"{param} has {length} characters in all; at most {_MAX_STOP_CHARACTERS} are allowed", param
        )
    return texts


def check_choices(service: Service, n: int, num_prompts: int) -> int:
    """`n` if so many choices of each prompt are allowed. Raises InvalidRequestError."""
    limit = service.limits.max_choices
    if n < 1 or n * num_prompts > limit:
        raise InvalidRequestError(f"n is {n} for {num_prompts} prompts; 1 to {limit} choices in all are allowed", "n")
    return n


def submits(
    service: Service,
    prompts: Sequence[tuple[tuple[int, ...], SamplingParams]],
    n: int,
    cache_salt: str,
    priority: int | None = None,
) -> tuple[Submit, ...]:
    """`n` children of each prompt, prompt by prompt. Child k draws from seed + k, modulo 2^64, so that they differ."""
    name = uuid.uuid4().hex
    children = [
        (prompt, sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + k) % 2**64))
        for prompt, sampling in prompts
        for k in range(n)
    ]
    return tuple(
        Submit(
            request_id=f"{name}-{index}",
            prompt=prompt,
            sampling=sampling,
            eos_token_ids=service.tokenizer.eos_ids,
            cache_salt=cache_salt,
            priority=priority or 0,
            constraint=None if sampling.structure is None else service.structures.compile(sampling.structure),
        )
        for index, (prompt, sampling) in enumerate(children)
    )
