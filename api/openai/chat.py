"""POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter

from ...daemon.messages import Token
from ..body import parse
from ..chat.dialect import ChatAnswer, ChatUsage
from ..chat.events import CallArguments, CallBegan, ChatEvent, ChatPiece, Ended, Reasoning, Text
from ..chat.prepare import prepare
from ..fields import FieldNotes
from ..logprobs import chat_logprobs
from ..openapi import described
from ..sampling import check_model
from ..server import Server
from ..service import Service
from ..stream import Job
from .answers import ChatCompletion
from .chat_tokens import ChatTokens
from .chat_wish import chat_wish
from .endpoint import Envelope, endpoint
from .fields import HARMLESS, REFUSED
from .schemas import ChatRequest


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The chat endpoint of a server."""
    told = described(body=ChatRequest, answer=ChatCompletion, stream="text/event-stream")
    return endpoint("/v1/chat/completions", prepare_chat, server, notes, told)


def prepare_chat(service: Service, notes: FieldNotes, raw: bytes, tenant: str) -> Job:
    """Check a request and turn it into a job. Raises RequestError or UnknownModelError."""
    body = parse(raw, ChatRequest)
    check_model(service, body.model)
    notes.check(body.model_extra, REFUSED, HARMLESS)
    include_usage = body.include_usage
    wish = chat_wish(service, body)
    dialect = ChatDialect(
        service,
        wish.n,
        wish.sampling["logprobs"] is not None,
        include_usage,
        named=wish.tool_choice.mode == "named",
    )
    conversation = prepare(service, wish, tenant)
    job, top = conversation.job(dialect), wish.sampling["prompt_logprobs"]
    if top is None and not body.return_token_ids:
        return job
    prompt = conversation.submits[0].prompt
    encoder = ChatTokens(job.encoder, prompt, service.tokenizer, ids=bool(body.return_token_ids), top=top)
    return replace(job, encoder=encoder)


class ChatDialect:
    """Writes chat.completion and chat.completion.chunk objects.

    named: a tool had to be called, by its name.
    """

    def __init__(self, service: Service, n: int, logprobs: bool, include_usage: bool, *, named: bool = False) -> None:
        self._tokenizer = service.tokenizer
        self._named = named
        self._reasoning = service.reasoning_names
        self._n = n
        self._with_logprobs = logprobs
        self._envelope = Envelope("chatcmpl", "chat.completion.chunk", service.model_id, include_usage)

    def opening(self) -> list[dict[str, Any]]:
        """The role of each choice; later deltas do not repeat it, since clients add strings up."""
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._n)]

    def chunks(self, piece: ChatPiece) -> list[dict[str, Any]]:
        """A chunk for each event, the first with the log-probabilities, the finish reason in a chunk of its own."""
        logprobs = self._logprobs(piece.tokens) if piece.tokens else None
        deltas = [(self._delta(event), self._reason(event)) for event in piece.events]
        if logprobs and (not deltas or deltas[0][1] is not None):  # tokens that were no part of any text
            deltas.insert(0, ({}, None))
        chunks = []
        for delta, reason in deltas:
            chunks.append(self._chunk(piece.index, delta, logprobs, reason))
            logprobs = None
        return chunks

    def closing(self, usage: ChatUsage) -> list[dict[str, Any]]:
        """The chunk with the usage, if it was asked for."""
        return self._envelope.closing(usage)

    def whole(self, answers: Sequence[ChatAnswer], usage: ChatUsage) -> dict[str, Any]:
        """The chat.completion object."""
        choices = [
            {
                "index": index,
                "message": message(each.events, self._reasoning),
                "logprobs": self._logprobs(each.tokens),
                "finish_reason": self._reason(each.events[-1]),
            }
            for index, each in enumerate(answers)
        ]
        return {**self._envelope.whole(choices, usage), "object": "chat.completion"}

    def _reason(self, event: ChatEvent) -> str | None:
        """OpenAI says "stop" where the call was the only thing that could happen."""
        if not isinstance(event, Ended):
            return None
        return "stop" if self._named and event.reason == "tool_calls" else event.reason

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

    def _delta(self, event: ChatEvent) -> dict[str, Any]:
        """Id, type and name of a call come once; deltas of calls have no content."""
        match event:
            case Text(text):
                return {"content": text}
            case Reasoning(text):
                return dict.fromkeys(self._reasoning, text)
            case CallBegan(index, call_id, name):
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
            case CallArguments(index, json_text):
                return {"tool_calls": [{"index": index, "function": {"arguments": json_text}}]}
            case Ended():
                return {}


def message(events: Sequence[ChatEvent], names: Sequence[str]) -> dict[str, Any]:
    """The assistant's message, its reasoning under these names. Its content is null where there are only calls."""
    text = "".join(event.text for event in events if isinstance(event, Text))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls: list[dict[str, Any]] = []
    for event in events:
        if isinstance(event, CallBegan):
            function = {"name": event.name, "arguments": ""}
            calls.append({"id": event.call_id, "type": "function", "function": function})
        elif isinstance(event, CallArguments):
            calls[event.index]["function"]["arguments"] += event.json_text
    result: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text, "refusal": None}
    if reasoning:
        result |= dict.fromkeys(names, reasoning)
    if calls:
        result["tool_calls"] = calls
    return result
