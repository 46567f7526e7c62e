"""ChatTokens: what clients may want to be told of tokens beside a conversation."""

from collections.abc import Sequence
from typing import Any

from ...daemon.messages import Token, TokenLogprobs, Usage
from ...daemon.tokenizer import Tokenizer
from ..generation import Piece
from ..logprobs import prompt_logprobs
from ..stream import Answer, Encoder

Scores = tuple[TokenLogprobs | None, ...]


class ChatTokens:
    """Adds to what another encoder writes: with `ids` the token ids of prompt and answers, with `top` the
    log-probabilities of the prompt's tokens and of so many alternatives."""

    def __init__(
        self, encoder: Encoder, prompt: Sequence[int], tokenizer: Tokenizer, *, ids: bool, top: int | None
    ) -> None:
        self._encoder, self._prompt, self._tokenizer = encoder, prompt, tokenizer
        self._ids, self._top = ids, top
        self._scores: Scores | None = None
        self._untold: dict[int, list[int]] = {}  # of choices whose last tokens are no part of any chunk yet

    def opening(self) -> list[dict[str, Any]]:
        """The first chunk has what is to be told of the prompt."""
        first, *others = self._encoder.opening()
        return [{**first, **self._of_prompt(self._scores)}, *others]

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The tokens of a piece are told in its first chunk, or that of the next one which has any."""
        self._scores = piece.prompt or self._scores
        chunks = self._encoder.chunks(piece)
        if not self._ids:
            return chunks
        untold = self._untold.setdefault(piece.index, [])
        untold += _ids_of(piece)
        if chunks:
            self._untold[piece.index] = []
        return [_with_ids(chunk, [] if number else untold) for number, chunk in enumerate(chunks)]

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """As the encoder says."""
        return self._encoder.closing(usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The encoder's body and the tokens."""
        body = {**self._encoder.whole(answers, usage), **self._of_prompt(answers[0].prompt)}
        if self._ids:
            pairs = zip(body["choices"], answers, strict=True)
            body["choices"] = [{**choice, "token_ids": _ids_of(answer)} for choice, answer in pairs]
        return body

    def _of_prompt(self, scores: Scores | None) -> dict[str, Any]:
        told: dict[str, Any] = {"prompt_token_ids": self._prompt} if self._ids else {}
        if self._top is not None and scores is not None:
            told["prompt_logprobs"] = prompt_logprobs(self._prompt, scores, self._top, self._tokenizer)
        return told


def _ids_of(part: Piece | Answer) -> list[int]:
    """The token that ends a choice is the last one."""
    tokens: list[Token] = [*part.tokens, *([part.stop_token] if part.stop_token else [])]
    return [token.token_id for token in tokens]


def _with_ids(chunk: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    (choice,) = chunk["choices"]
    return {**chunk, "choices": [{**choice, "token_ids": ids}]}
