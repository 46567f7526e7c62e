"""POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Token, Usage
from ..body import parse
from ..generation import Piece
from ..service import Service
from ..stream import Answer, Job
from . import sampling
from .endpoint import Envelope, endpoint
from .fields import FieldNotes
from .logprobs import chat_logprobs
from .prompts import encode
from .schemas import ChatRequest


def router(service: Service, notes: FieldNotes) -> APIRouter:
    """The chat endpoint of a service."""
    return endpoint("/v1/chat/completions", prepare_chat, service, notes)


def prepare_chat(service: Service, notes: FieldNotes, raw: bytes, tenant: str) -> Job:
    """Check a request and turn it into a job. Raises RequestError or UnknownModelError."""
    body = parse(raw, ChatRequest)
    sampling.check_model(service, body.model)
    notes.check(body.model_extra)
    _refuse_tools(body)
    n = sampling.choices_per_prompt(body, service, 1)
    logprobs = _logprobs(body)
    include_usage = body.include_usage
    prompt = encode(service, _render(service, body), "messages", add_special=False)
    wanted, param = body.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        wanted, param = body.max_tokens, "max_tokens"
    max_tokens = sampling.room_for(service, prompt, wanted, None, "messages" if wanted is None else param)
    params = sampling.sampling_params(body, service, max_tokens, logprobs)
    return Job(
        submits=sampling.submits(service, [(prompt, params)], n, tenant + (body.cache_salt or "")),
        choices_per_prompt=n,
        stream=bool(body.stream),
        encoder=ChatEncoder(service, n, logprobs is not None, include_usage),
    )


def _refuse_tools(body: ChatRequest) -> None:
    if body.tool_choice == "none":
        return
    if body.tools:
        raise InvalidRequestError("tools are not supported by this server; leave them out", "tools")
    if body.tool_choice not in (None, "auto"):
        raise InvalidRequestError("tool_choice needs tools, which this server does not support", "tool_choice")


def _logprobs(body: ChatRequest) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", "top_logprobs")
        return None
    count = body.top_logprobs or 0
    if not 0 <= count <= 20:
        raise InvalidRequestError(f"top_logprobs is {count}; it must lie between 0 and 20", "top_logprobs")
    return count


def _render(service: Service, body: ChatRequest) -> str:
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return service.chat_template.render(
        body.messages, add_generation_prompt=body.add_generation_prompt is not False, kwargs=kwargs
    )


class ChatEncoder:
    """Writes chat.completion and chat.completion.chunk objects."""

    def __init__(self, service: Service, n: int, logprobs: bool, include_usage: bool) -> None:
        self._tokenizer = service.tokenizer
        self._n = n
        self._with_logprobs = logprobs
        self._envelope = Envelope("chatcmpl", "chat.completion.chunk", service.model_id, include_usage)

    def opening(self) -> list[dict[str, Any]]:
        """The role of each choice; later deltas do not repeat it, since clients add strings up."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._n)]

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        """Text and its log-probabilities, then the finish reason in a chunk of its own."""
        chunks = []
        logprobs = self._logprobs(piece.tokens) if piece.tokens else None
        if piece.text or logprobs:
            chunks.append(self._chunk(piece.index, {"content": piece.text}, logprobs))
        if piece.finish_reason is not None:
            chunks.append(self._chunk(piece.index, {}, finish_reason=piece.finish_reason))
        return chunks

    def usage_chunk(self, usage: Usage) -> dict[str, Any] | None:
        """The chunk that closes the stream, None if it was not asked for."""
        return self._envelope.usage_chunk(usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The chat.completion object."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": each.text, "refusal": None},
                "logprobs": self._logprobs(each.tokens),
                "finish_reason": each.finish_reason,
            }
            for index, each in enumerate(answers)
        ]
        return {**self._envelope.whole(choices, usage), "object": "chat.completion"}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self._tokenizer) if self._with_logprobs else None

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._envelope.chunk(choice)
