"""POST /v1/completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Usage
from ...daemon.request import SamplingParams
from ..body import parse
from ..generation import Piece
from ..service import Service
from ..stream import Answer, Job
from . import sampling
from .endpoint import Envelope, endpoint
from .fields import FieldNotes
from .logprobs import completion_logprobs
from .prompts import Prompt, list_prompts, read_prompt
from .schemas import CompletionRequest
from .structures import structure_of

_DEFAULT_MAX_TOKENS = 16


def router(service: Service, notes: FieldNotes) -> APIRouter:
    """The completions endpoint of a service."""
    return endpoint("/v1/completions", prepare_completion, service, notes)


def prepare_completion(service: Service, notes: FieldNotes, raw: bytes, tenant: str) -> Job:
    """Check a request and turn it into a job. Raises RequestError or UnknownModelError."""
    body = parse(raw, CompletionRequest)
    sampling.check_model(service, body.model)
    notes.check(body.model_extra)
    if body.echo and body.logprobs is not None:
        raise InvalidRequestError("echo with logprobs is not supported: prompts have no log-probabilities", "echo")
    include_usage = body.include_usage
    values = list_prompts(body.prompt)
    n = sampling.choices_per_prompt(body, service, len(values))  # before a million of them are encoded
    prompts = [read_prompt(service, value) for value in values]
    structure = structure_of(service, body)
    pairs = [(prompt.ids, replace(_params(service, body, prompt), structure=structure)) for prompt in prompts]
    echoes = [prompt.text if body.echo else "" for prompt in prompts for _ in range(n)]
    return Job(
        submits=sampling.submits(service, pairs, n, tenant + (body.cache_salt or "")),
        choices_per_prompt=n,
        stream=bool(body.stream),
        encoder=CompletionEncoder(service, echoes, body.logprobs is not None, include_usage),
    )


def _params(service: Service, body: CompletionRequest, prompt: Prompt) -> SamplingParams:
    param = "prompt" if body.max_tokens is None else "max_tokens"
    max_tokens = sampling.room_for(service, prompt.ids, body.max_tokens, _DEFAULT_MAX_TOKENS, param)
    return sampling.sampling_params(body, service, max_tokens, body.logprobs)


class CompletionEncoder:
    """Writes text_completion objects. `echoes` holds the text that goes before each choice."""

    def __init__(self, service: Service, echoes: Sequence[str], logprobs: bool, include_usage: bool) -> None:
        self._tokenizer = service.tokenizer
        self._echoes = echoes
        self._with_logprobs = logprobs
        self._envelope = Envelope("cmpl", "text_completion", service.model_id, include_usage)

    def opening(self) -> list[dict[str, Any]]:
        """The echoed prompts."""
        return [self._chunk(index, echo) for index, echo in enumerate(self._echoes) if echo]

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Text and its log-probabilities, then the finish reason in a chunk of its own."""
        chunks = []
        logprobs = self._logprobs(piece) if piece.tokens else None
        if piece.text or logprobs:
            chunks.append(self._chunk(piece.index, piece.text, logprobs))
        if piece.finish_reason is not None:
            chunks.append(self._chunk(piece.index, "", finish_reason=piece.finish_reason))
        return chunks

    def closing(self, usage: Usage) -> list[dict[str, Any]]:
        """The chunk with the usage, if it was asked for."""
        return self._envelope.closing(usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The text_completion object; choices of one prompt lie side by side."""
        choices = [
            {
                "index": index,
                "text": echo + each.text,
                "logprobs": self._logprobs(each),
                "finish_reason": each.finish_reason,
            }
            for index, (echo, each) in enumerate(zip(self._echoes, answers, strict=True))
        ]
        return self._envelope.whole(choices, usage)

    def _logprobs(self, part: Piece | Answer) -> dict[str, Any] | None:
        """Offsets count from the answer's own beginning: there is no echo beside log-probabilities."""
        return completion_logprobs(part.tokens, part.starts, self._tokenizer) if self._with_logprobs else None

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._envelope.chunk(choice)
