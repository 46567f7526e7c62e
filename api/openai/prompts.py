"""The prompt field of plain completions: one or many texts or lists of token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...daemon.errors import ContextLengthError, InvalidRequestError
from ..service import Service

_MAX_CHARS_PER_TOKEN = 64  # on average over a whole prompt; far above any real text


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the text to echo."""

    ids: tuple[int, ...]
    text: str


def read_prompts(service: Service, value: Any) -> list[Prompt]:
    """The prompts of a request. Raises InvalidRequestError, or ContextLengthError before a hopeless one is encoded."""
    return [_read_prompt(service, each) for each in _as_list(value)]


def encode(service: Service, text: str, param: str, *, add_special: bool) -> tuple[int, ...]:
    """Token ids of a text that may fit the context, at least one."""
    limit = service.max_context * _MAX_CHARS_PER_TOKEN
    if len(text) > limit:
        raise ContextLengthError(
            f"the prompt has {len(text)} characters; it cannot fit the context of {service.max_context} tokens", param
        )
    ids = tuple(service.tokenizer.encode(text, add_special=add_special))
    if not ids:
        raise InvalidRequestError("the prompt is empty", param)
    return ids


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str) or _is_ids(value):
        return [value]
    if isinstance(value, list) and value and (_all(value, str) or all(_is_ids(each) for each in value)):
        return value
    raise InvalidRequestError(
        "prompt must be a string, a list of strings, a list of token ids, or a list of such", "prompt"
    )


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and _all(value, int)


def _all(values: Sequence[Any], kind: type) -> bool:
    return all(type(each) is kind for each in values)  # a bool is no token id


def _read_prompt(service: Service, value: str | list[int]) -> Prompt:
    if isinstance(value, str):
        return Prompt(encode(service, value, "prompt", add_special=True), value)
    foreign = next((token for token in value if not 0 <= token < service.vocab_size), None)
    if foreign is not None:
        raise InvalidRequestError(
            f"prompt holds the token id {foreign}; ids must lie below {service.vocab_size}", "prompt"
        )
    return Prompt(tuple(value), service.tokenizer.decode(value))
