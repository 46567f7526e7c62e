"""CompletionEncoder: how plain completions look to a client."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ...daemon.messages import Token, TokenLogprobs, Usage
from ...daemon.tokenizer import Tokenizer
from ..generation import Piece
from ..logprobs import Naming, Places, completion_logprobs, prompt_logprobs
from ..prompts import Prompt
from ..service import Service
from ..stream import Answer
from .endpoint import Envelope

Scores = tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a client wants to be told beside the text. logprobs, prompt_logprobs: how many alternatives of each token of
    the answer (with `echo` of the prompt too), and of the prompt in an object of its own."""

    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    token_ids: bool = False
    tokens_as_ids: bool = False
    usage: bool = False

    @property
    def top_of_prompt(self) -> int | None:
        """How many alternatives the engine has to give of each token of the prompt; None where it has nothing to."""
        counts = [self.logprobs if self.echo else None, self.prompt_logprobs]
        return max((count for count in counts if count is not None), default=None)


class CompletionEncoder:
    """Writes text_completion objects. `prompts` holds the prompt of each choice."""

    def __init__(self, service: Service, prompts: Sequence[Prompt], wanted: Wanted) -> None:
        self._naming = Naming(service.tokenizer, as_ids=wanted.tokens_as_ids)
        self._prompts, self._wanted = prompts, wanted
        self._lengths = [len(self._echo(index)) for index in range(len(prompts))]  # of all text so far
        self._envelope = Envelope("cmpl", "text_completion", service.model_id, wanted.usage)

    def opening(self) -> list[dict[str, Any]]:
        """The prompts, as far as they are to be told. Where their scores are too, each comes with these."""
        if self._wanted.top_of_prompt is not None or not (self._wanted.echo or self._wanted.token_ids):
            return []
        return [self._of_prompt(index, None) for index in range(len(self._prompts))]

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """The prompt, text and its log-probabilities, then the finish reason in a chunk of its own."""
        index = piece.index
        chunks = [] if piece.prompt is None else [self._of_prompt(index, piece.prompt)]
        logprobs = self._logprobs(index, piece.tokens, piece.starts) if piece.tokens else None
        self._lengths[index] += len(piece.text)
        if piece.text or piece.tokens:
            ids = {"token_ids": [token.token_id for token in piece.tokens]}
            chunks.append(self._chunk(index, piece.text, logprobs, **self._if_ids(ids)))
        if piece.finish_reason is not None:
            stop = _last(piece.stop_token)
            logprobs = self._logprobs(index, stop, [self._lengths[index] - len(self._echo(index))]) if stop else None
            ids = {"token_ids": [token.token_id for token in stop]}
            chunks.append(
                self._chunk(
                    index, "", logprobs, piece.finish_reason, stop_reason=piece.stop_reason, **self._if_ids(ids)
                )
            )
        return chunks

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """The chunk with the usage, if it was asked for."""
        return self._envelope.closing(usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The text_completion object; choices of one prompt lie side by side."""
        return self._envelope.whole([self._choice(*each) for each in enumerate(answers)], usage)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        prompt, stop = self._prompts[index], _last(answer.stop_token)
        tokens, starts = (*answer.tokens, *stop), (*answer.starts, *[len(answer.text)] * len(stop))
        ids = {"prompt_token_ids": prompt.ids, "token_ids": [token.token_id for token in tokens]}
        return {
            "index": index,
            "text": self._echo(index) + answer.text,
            "logprobs": self._logprobs(index, tokens, starts, answer.prompt),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            **self._scores(index, answer.prompt),
            **self._if_ids(ids),
        }

    def _echo(self, index: int) -> str:
        return self._prompts[index].text if self._wanted.echo else ""

    def _if_ids(self, ids: dict[str, Any]) -> dict[str, Any]:
        return ids if self._wanted.token_ids else {}

    def _scores(self, index: int, scores: Scores | None) -> dict[str, Any]:
        """The object of the prompt's own log-probabilities, if it is wanted."""
        top = self._wanted.prompt_logprobs
        if top is None or scores is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(self._prompts[index].ids, scores, top, self._naming.tokenizer)}

    def _of_prompt(self, index: int, scores: Scores | None) -> dict[str, Any]:
        logprobs = self._logprobs(index, (), (), scores) if scores is not None and self._wanted.echo else None
        ids = self._if_ids({"prompt_token_ids": self._prompts[index].ids, "token_ids": []})
        return self._chunk(index, self._echo(index), logprobs, **self._scores(index, scores), **ids)

    def _logprobs(
        self, index: int, tokens: Sequence[Token], starts: Sequence[int], scores: Scores | None = None
    ) -> dict[str, Any] | None:
        """Of the prompt if `scores` are its, then of tokens that begin at `starts` in the answer."""
        if self._wanted.logprobs is None:
            return None
        prompt, echoed = self._prompts[index], len(self._echo(index))
        told = scores if scores is not None and self._wanted.echo else ()
        before = prompt.ids if told else ()
        places = Places(
            [*before, *(token.token_id for token in tokens)],
            [*told, *(token.logprobs for token in tokens)],
            [*(prompt_offsets(prompt, self._naming.tokenizer) if told else ()), *(echoed + start for start in starts)],
        )
        return completion_logprobs(places, self._wanted.logprobs, self._naming)

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None = None, **more: Any
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, **more}
        return self._envelope.chunk(choice)


def _last(token: Token | None) -> tuple[Token, ...]:
    """The token that ended a choice: it has no text, but clients count it."""
    return () if token is None else (token,)


def prompt_offsets(prompt: Prompt, tokenizer: Tokenizer) -> list[int]:
    """Where each token of a prompt begins in its text. A tokenizer that puts a space before the text, or writes it
    otherwise, leaves what it has added outside."""
    detokenizer, ends = tokenizer.detokenizer(), [0]
    for token in prompt.ids:
        ends.append(ends[-1] + len(detokenizer.push(token)))
    added = max(ends[-1] + len(detokenizer.finish()) - len(prompt.text), 0)
    return [min(max(start - added, 0), len(prompt.text)) for start, _ in pairwise(ends)]
