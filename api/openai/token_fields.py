"""Fields that speak of single tokens: biases, bans and what alone is allowed."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...daemon.errors import InvalidRequestError
from ..service import Service
from .schemas import CompletionFields, LogitBias

_MAX_LOGIT_BIAS = 100.0
_MAX_BAD_WORDS = 1024
_MAX_BAD_CHARACTERS = 65536  # of all together: each step looks for the words of several tokens

Words = tuple[tuple[int, ...], ...]


def token_rules(body: CompletionFields, service: Service) -> dict[str, Any]:
    """The fields logit_bias, bad_words and allowed_token_ids of SamplingParams. Raises InvalidRequestError."""
    biases, banned = _biases(body.logit_bias, service)
    allowed = body.allowed_token_ids
    return {
        "logit_bias": biases,
        "bad_words": tuple(dict.fromkeys([*_bad_words(body.bad_words or (), service), *banned])),
        "allowed_token_ids": None if allowed is None else frozenset(allowed),
    }


def _biases(given: LogitBias | None, service: Service) -> tuple[tuple[tuple[int, float], ...], Words]:
    """Biases, and the tokens that `false` bans. A text stands for each of its tokens."""
    biases: list[tuple[int, float]] = []
    banned: list[tuple[int, ...]] = []
    for key, value in given.items() if isinstance(given, dict) else given or ():
        tokens = _tokens_of(key, service, is_id=isinstance(given, dict))
        if value is False:
            banned += [(token,) for token in tokens]
        elif value is True or not -_MAX_LOGIT_BIAS <= value <= _MAX_LOGIT_BIAS:
            raise InvalidRequestError(
                f"logit_bias of token {key} is {value}; it must lie between -100 and 100, or be false to ban the token",
                "logit_bias",
            )
        else:
            biases += [(token, value) for token in tokens]
    return tuple(biases), tuple(banned)


def _tokens_of(key: str | int, service: Service, *, is_id: bool) -> Sequence[int]:
    if isinstance(key, str) and not is_id:
        return service.tokenizer.encode(key, add_special=False)
    text = str(key)
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) < service.vocab_size):
        raise InvalidRequestError(
            f"logit_bias has the key {key!r}; keys are token ids below {service.vocab_size}", "logit_bias"
        )
    return [int(text)]


def _bad_words(words: Sequence[str], service: Service) -> Iterable[tuple[int, ...]]:
    """The tokens of each word, at the beginning of a text and after a space."""
    length = sum(map(len, words))
    if len(words) > _MAX_BAD_WORDS or length > _MAX_BAD_CHARACTERS:
        raise InvalidRequestError(
            f"bad_words has {len(words)} words of {length} characters in all; at most {_MAX_BAD_WORDS} of "
            f"{_MAX_BAD_CHARACTERS} are allowed",
            "bad_words",
        )
    for word in words:
        if not word.strip():
            raise InvalidRequestError("bad_words must not hold an empty word", "bad_words")
        for text in (word, " " + word.lstrip()):
            yield tuple(service.tokenizer.encode(text, add_special=False))
