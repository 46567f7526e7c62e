"""POST /api/chat and /api/generate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ...daemon.errors import ContextLengthError, InvalidRequestError
from ...daemon.messages import Token
from ...daemon.request import SamplingParams
from ..answering import answer
from ..body import parse
from ..chat.plain import PlainReader
from ..chat.prepare import Conversation, prepare
from ..chat.reading import ChatReading
from ..chat.tool_fields import function_tools
from ..chat.wish import ChatWish
from ..fields import FieldNotes
from ..holding import keep_for
from ..logprobs import chat_logprobs
from ..openapi import described
from ..prompts import encode
from ..sampling import room_for, submits
from ..server import Server
from ..service import Service
from ..stream import Exchange
from .answers import OllamaLine
from .clock import Clock
from .conversation import read_messages
from .dialect import OllamaDialect, Wrap, chat_message, generated, now
from .framing import OllamaError, framing_with
from .keep_alive import seconds_of
from .manners import CHAT, GENERATE
from .names import check_name
from .options import check_fields, max_tokens_of, sampling_of, structure_of, thinking_of
from .request import OllamaChat, OllamaGenerate, OllamaRequest

B = TypeVar("B", bound=OllamaRequest)


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The two endpoints of a server."""
    routes = APIRouter()

    def told(body: type[OllamaRequest]) -> Any:
        return described(body=body, answer=OllamaLine, stream="application/x-ndjson", errors=OllamaError)

    @routes.post("/api/chat", **told(OllamaChat))
    async def chat(request: Request) -> Response:
        def make(service: Service, raw: bytes, tenant: str) -> Response:
            return _Maker(service, notes, request.scope).chat(raw, tenant)

        return await answer(server, request, make, manners=CHAT)

    @routes.post("/api/generate", **told(OllamaGenerate))
    async def generate(request: Request) -> Response:
        def make(service: Service, raw: bytes, tenant: str) -> Response:
            return _Maker(service, notes, request.scope).generate(raw, tenant)

        return await answer(server, request, make, manners=GENERATE)

    return routes


class _Maker:
    """Makes the response of a request."""

    def __init__(self, service: Service, notes: FieldNotes, scope: Scope) -> None:
        self._service = service
        self._notes = notes
        self._scope = scope

    def chat(self, raw: bytes, tenant: str) -> Response:
        """Check a request to /api/chat. Raises RequestError or UnknownModelError."""
        body = self._body(raw, OllamaChat)
        if not body.messages:
            return _loaded(body, chat_message)
        messages = read_messages(body.messages)
        tools = function_tools(body.tools or ())
        return self._exchange(body, self._conversation(body, messages, tenant, tools=tools), chat_message)

    def generate(self, raw: bytes, tenant: str) -> Response:
        """Check a request to /api/generate. Raises RequestError or UnknownModelError."""
        body = self._body(raw, OllamaGenerate)
        if not body.prompt:
            return _loaded(body, generated)
        if body.raw:
            return self._exchange(body, self._raw(body, body.prompt, tenant), generated)
        messages = [{"role": "user", "content": body.prompt}]
        if body.system:
            messages.insert(0, {"role": "system", "content": body.system})
        return self._exchange(body, self._conversation(body, messages, tenant), generated)

    def _body(self, raw: bytes, model: type[B]) -> B:
        body = parse(raw, model)
        check_name(self._service, body.model)
        check_fields(body, self._notes)
        keep_for(self._scope, seconds_of(body.keep_alive))
        return body

    def _conversation(
        self, body: OllamaRequest, messages: Sequence[Mapping[str, Any]], tenant: str, **fields: Any
    ) -> Conversation:
        prefilled = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        wish = ChatWish(
            messages=tuple(messages),
            thinking=thinking_of(body),
            structure=structure_of(body),
            sampling=sampling_of(body),
            max_tokens=max_tokens_of(body),
            max_tokens_param="num_predict",
            stream=body.stream is not False,
            add_generation_prompt=not prefilled,
            continue_final_message=prefilled,
            **fields,
        )
        try:
            return prepare(self._service, wish, tenant)
        except ContextLengthError as error:
            if error.param != "num_predict":
                raise
        return prepare(self._service, replace(wish, max_tokens=None), tenant)  # here it is what fits, at most

    def _raw(self, body: OllamaGenerate, prompt: str, tenant: str) -> Conversation:
        """The prompt as it is, without the model's template."""
        if structure_of(body) is not None:
            raise InvalidRequestError("format is not supported together with raw", "format")
        service = self._service
        ids = encode(service, prompt, "prompt", add_special=True)
        room = room_for(service, ids, None, None, "prompt")
        params = SamplingParams(**sampling_of(body), max_tokens=min(max_tokens_of(body) or room, room))
        return Conversation(
            submits=submits(service, [(ids, params)], 1, tenant),
            readings=(ChatReading(PlainReader(), service.tokenizer),),
            stream=body.stream is not False,
        )

    def _exchange(self, body: OllamaRequest, conversation: Conversation, wrap: Wrap) -> Response:
        clock = Clock(conversation.readings[0])
        dialect = OllamaDialect(body.model, wrap, clock.durations, self._logprobs if body.logprobs else None)
        job = conversation.job(dialect, framing_with(dialect.line({})))
        return Exchange(self._service, replace(job, readings=(clock,)))

    def _logprobs(self, tokens: Sequence[Token]) -> list[Any]:
        entries: list[Any] = chat_logprobs(tokens, self._service.tokenizer)["content"]
        return entries


def _loaded(body: OllamaRequest, wrap: Wrap) -> Response:
    """Clients ask nothing in order to have the model loaded, which it is now, or unloaded, which it then will be."""
    reason = "unload" if seconds_of(body.keep_alive) == 0 else "load"
    line = {"model": body.model, "created_at": now(), **wrap({}), "done": True, "done_reason": reason}
    return Response(orjson.dumps(line), media_type="application/json")
