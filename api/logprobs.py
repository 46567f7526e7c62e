"""Log-probabilities in the two shapes of the API."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..daemon.messages import Token, TokenLogprobs
from ..daemon.tokenizer import Tokenizer

_MINUS_INFINITY = -9999.0  # JSON knows no infinity; clients know this number


def chat_logprobs(tokens: Sequence[Token], tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` object of a chat choice: one entry per token."""
    return {"content": [_chat_entry(token, tokenizer) for token in tokens], "refusal": None}


def _chat_entry(token: Token, tokenizer: Tokenizer) -> dict[str, Any]:
    logprobs = _of(token)
    top = [_named(token_id, value, tokenizer) for token_id, value in logprobs.top]
    return {**_named(token.token_id, logprobs.logprob, tokenizer), "top_logprobs": top}


def _named(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}


@dataclass(frozen=True, slots=True)
class Places:
    """Tokens with their log-probabilities, if there are any for a token, and where each begins in a text."""

    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None]
    offsets: Sequence[int]


def completion_logprobs(places: Places, top: int, naming: "Naming") -> dict[str, Any]:
    """The `logprobs` object of a plain completion, with `top` alternatives at least."""
    return {
        "tokens": [naming(token) for token in places.tokens],
        "token_logprobs": [each and _finite(each.logprob) for each in places.logprobs],
        "top_logprobs": [
            each and _by_name(token, each, top, naming)
            for token, each in zip(places.tokens, places.logprobs, strict=True)
        ],
        "text_offset": list(places.offsets),
    }


class Naming:
    """How tokens are called: by their text, or by their id if `as_ids`."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self.tokenizer = tokenizer
        self._as_ids = as_ids

    def __call__(self, token: int) -> str:
        return f"token_id:{token}" if self._as_ids else self.tokenizer.token_text(token)


def prompt_logprobs(
    tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None], top: int, tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """Per token of a prompt an object by token id: the token itself and `top` alternatives, with their ranks as far as
    these are known. None for the first one."""
    return [
        None if each is None else _by_id(token, each, top, tokenizer)
        for token, each in zip(tokens, logprobs, strict=True)
    ]


def _by_id(token: int, logprobs: TokenLogprobs, top: int, tokenizer: Tokenizer) -> dict[str, Any]:
    ranks = {each: rank for rank, (each, _) in enumerate(logprobs.top, 1)}
    values = dict(logprobs.top[:top])
    values.setdefault(token, logprobs.logprob)
    return {
        str(each): {"logprob": _finite(value), "rank": ranks.get(each), "decoded_token": tokenizer.token_text(each)}
        for each, value in values.items()
    }


def _by_name(token: int, logprobs: TokenLogprobs, top: int, naming: Naming) -> dict[str, float]:
    result: dict[str, float] = {}
    for each, value in (*logprobs.top[:top], (token, logprobs.logprob)):  # the chosen one is always among them
        result.setdefault(naming(each), _finite(value))  # best first: the better one keeps the name
    return result


def _finite(value: float) -> float:
    return max(value, _MINUS_INFINITY)


def _of(token: Token) -> TokenLogprobs:
    assert token.logprobs is not None  # the engine gives them with each token of a request that asked
    return token.logprobs
