"""The prompt field of plain completions: one or many texts or lists of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..daemon.errors import ContextLengthError, InvalidRequestError
from .sampling import room_for
from .service import Service

_MAX_CHARS_PER_TOKEN = 64  # on average over a whole prompt; far above any real text


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the text to echo."""

    ids: tuple[int, ...]
    text: str


def read_prompt(service: Service, value: str | list[int], keep: int | None = None, param: str = "prompt") -> Prompt:
    """One of `list_prompts`. keep: only its last tokens, so many. Raises InvalidRequestError, or ContextLengthError
    before a hopeless one is worked on."""
    if isinstance(value, str):
        ids = encode(service, value, param, add_special=True)
        return Prompt(ids, value) if keep is None or len(ids) <= keep else _of_ids(service, ids[-keep:])
    kept = value if keep is None else value[-keep:]
    room_for(service, kept, None, None, param)
    foreign = next((token for token in kept if not 0 <= token < service.vocab_size), None)
    if foreign is not None:
        raise InvalidRequestError(
            f"{param} holds the token id {foreign}; ids must lie below {service.vocab_size}", param
        )
    return _of_ids(service, kept)


def _of_ids(service: Service, ids: Sequence[int]) -> Prompt:
    return Prompt(tuple(ids), service.tokenizer.decode(ids))


def kept_tokens(service: Service, truncate: int | None, max_tokens: int | None) -> int | None:
    """Of each prompt, by truncate_prompt_tokens; -1 keeps what fits. None: all. Raises InvalidRequestError."""
    if truncate is None:
        return None
    room = max(service.max_context - max(max_tokens or 0, 1), 1)
    if truncate != -1 and not 1 <= truncate <= room:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {truncate}; it must lie between 1 and {room}, or be -1 for all that fit",
            "truncate_prompt_tokens",
        )
    return room if truncate == -1 else truncate


def encode(service: Service, text: str, param: str, *, add_special: bool) -> tuple[int, ...]:
    """Token ids of a text that may fit the context, at least one."""
    check_length(service, text, param)
    ids = tuple(service.tokenizer.encode(text, add_special=add_special))
    if not ids:
        raise InvalidRequestError("the prompt is empty", param)
    return ids


def check_length(service: Service, text: str, param: str) -> None:
    """Raises ContextLengthError for a text that is too long to be worth encoding."""
    limit = service.max_context * _MAX_CHARS_PER_TOKEN
    if len(text) > limit:
        raise ContextLengthError(
            f"the {param} has {len(text)} characters; it cannot fit the context of {service.max_context} tokens", param
        )


def list_prompts(value: Any, param: str = "prompt") -> list[Any]:
    """The texts and lists of token ids in a field, which may be many. Raises InvalidRequestError."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if isinstance(value, list) and value and (_all(value, str) or all(_is_ids(each) for each in value)):
        return value
    raise InvalidRequestError(
        f"{param} must be a string, a list of strings, a list of token ids, or a list of such", param
    )


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _all(value, int)


def _all(values: Sequence[Any], kind: type) -> bool:
    return all(type(each) is kind for each in values)  # a bool is no token id
