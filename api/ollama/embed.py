"""POST /api/embed, and /api/embeddings as it was before."""

import asyncio
import time
import uuid
from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Submit
from ...daemon.request import SamplingParams
from ..answering import served
from ..auth import account_of, tenant_of
from ..body import parse
from ..chat.bounds import check_count
from ..embedding import embed_for, unit
from ..fields import FieldNotes
from ..holding import keep_for
from ..openapi import described
from ..prompts import kept_tokens, read_prompt
from ..sender import ClientGone
from ..server import Server
from ..service import Service
from .answers import OllamaEmbeddings
from .framing import OllamaError
from .keep_alive import seconds_of
from .manners import MANNERS
from .names import check_name
from .request import HARMLESS

_MAX_INPUTS = 2048


class OllamaEmbed(BaseModel):
    """truncate: whether texts that are too long lose their beginning; else they are refused."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    input: str | list[str] = []
    truncate: bool | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The embeddings endpoint of a server."""
    routes = APIRouter()

    @routes.post("/api/embed", **described(body=OllamaEmbed, answer=OllamaEmbeddings, errors=OllamaError))
    async def post(request: Request) -> Response:
        server.check_open(account_of(request))
        started = time.monotonic_ns()
        try:
            raw = await request.body()
            service = await served(server, request, raw, MANNERS)
            body, submits = await asyncio.to_thread(_prepare, service, notes, raw, tenant_of(request))
            keep_for(request.scope, seconds_of(body.keep_alive))
            found = await embed_for(request, service.client, submits)
        except (ClientDisconnect, ClientGone):
            return Response(status_code=499)  # the customary name of this case; nobody reads it
        size = found[0].values.size if found else 0
        if body.dimensions is not None and not 1 <= body.dimensions <= max(size, 1):
            raise InvalidRequestError(f"dimensions must lie between 1 and {size}", "dimensions")
        answer = {
            "model": body.model,
            "embeddings": [unit(each.values, body.dimensions).tolist() for each in found],
            "total_duration": time.monotonic_ns() - started,
            "load_duration": 0,
            "prompt_eval_count": sum(each.prompt_tokens for each in found),
        }
        return Response(orjson.dumps(answer), media_type="application/json")

    return routes


def _prepare(service: Service, notes: FieldNotes, raw: bytes, tenant: str) -> tuple[OllamaEmbed, list[Submit]]:
    body = parse(raw, OllamaEmbed)
    check_name(service, body.model)
    notes.check(body.model_extra, {}, HARMLESS | {"options"})
    texts = [body.input] if isinstance(body.input, str) else body.input
    check_count(texts, _MAX_INPUTS, "input")
    keep = None if body.truncate is False else kept_tokens(service, -1, 0)
    name = uuid.uuid4().hex
    common: dict[str, Any] = {"sampling": SamplingParams(max_tokens=0), "eos_token_ids": frozenset(), "pooling": "mean"}
    submits = [
        Submit(
            request_id=f"{name}-{index}",
            prompt=read_prompt(service, text, keep, "input").ids,
            cache_salt=tenant,
            **common,
        )
        for index, text in enumerate(texts)
    ]
    return body, submits
