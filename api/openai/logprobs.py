"""Log-probabilities in the two shapes of the API."""

from collections.abc import Sequence
from typing import Any

from ...daemon.messages import Token, TokenLogprobs
from ...daemon.tokenizer import Tokenizer

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


def completion_logprobs(tokens: Sequence[Token], offsets: Sequence[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """The `logprobs` object of a plain completion; `offsets` say where in the returned text each token begins."""
    logprobs = [_of(token) for token in tokens]
    return {
        "tokens": [tokenizer.token_text(token.token_id) for token in tokens],
        "token_logprobs": [_finite(each.logprob) for each in logprobs],
        "top_logprobs": [_by_text(token, tokenizer) for token in tokens],
        "text_offset": list(offsets),
    }


def _by_text(token: Token, tokenizer: Tokenizer) -> dict[str, float]:
    logprobs = _of(token)
    result: dict[str, float] = {}
    for token_id, value in (*logprobs.top, (token.token_id, logprobs.logprob)):  # the chosen one is always among them
        result.setdefault(tokenizer.token_text(token_id), _finite(value))  # best first: the better one keeps the name
    return result


def _finite(value: float) -> float:
    return max(value, _MINUS_INFINITY)


def _of(token: Token) -> TokenLogprobs:
    assert token.logprobs is not None  # the engine gives them with each token of a request that asked
    return token.logprobs
