"""POST /v1/messages and /v1/messages/count_tokens."""

from typing import TypeVar

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..answering import answer
from ..body import parse
from ..chat.prepare import prepare, prompt_ids
from ..fields import FieldNotes
from ..manners import Manners
from ..openapi import described
from ..sampling import check_model
from ..server import Server
from ..service import Service
from ..stream import Exchange, Job
from .answers import Message, TokenCount
from .dialect import MessagesDialect
from .framing import FRAMING, AnthropicError
from .request import HARMLESS, REFUSED, CountRequest, MessagesRequest
from .wish import read_wish

B = TypeVar("B", bound=CountRequest)

_MANNERS = Manners(framing=lambda _model: FRAMING)


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The Messages endpoints of a server."""
    routes = APIRouter()

    told = described(body=MessagesRequest, answer=Message, stream="text/event-stream", errors=AnthropicError)

    @routes.post("/v1/messages", **told)
    async def messages(request: Request) -> Response:
        def make(service: Service, raw: bytes, tenant: str) -> Response:
            return Exchange(service, _job(service, notes, raw, tenant))

        return await answer(server, request, make, manners=_MANNERS)

    @routes.post("/v1/messages/count_tokens", **described(body=CountRequest, answer=TokenCount, errors=AnthropicError))
    async def count_tokens(request: Request) -> Response:
        return await answer(server, request, lambda service, raw, _tenant: _count(service, notes, raw))

    return routes


def _job(service: Service, notes: FieldNotes, raw: bytes, tenant: str) -> Job:
    conversation = prepare(service, read_wish(_body(service, notes, raw, MessagesRequest)), tenant)
    return conversation.job(MessagesDialect(service.model_id, conversation.prompt_tokens), FRAMING)


def _count(service: Service, notes: FieldNotes, raw: bytes) -> Response:
    ids = prompt_ids(service, read_wish(_body(service, notes, raw, CountRequest)))
    return Response(orjson.dumps({"input_tokens": len(ids)}), media_type="application/json")


def _body(service: Service, notes: FieldNotes, raw: bytes, model: type[B]) -> B:
    body = parse(raw, model)
    check_model(service, body.model)
    notes.check(body.model_extra, REFUSED, HARMLESS)
    return body
