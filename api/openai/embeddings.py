"""POST /v1/embeddings."""

import asyncio
import base64
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ...daemon.errors import InvalidRequestError
from ...daemon.messages import Submit
from ...daemon.request import SamplingParams
from ..answering import served
from ..auth import account_of, tenant_of
from ..body import parse, read_json
from ..embedding import Embedded, Vector, embed_for, unit
from ..fields import FieldNotes
from ..openapi import described
from ..prompts import kept_tokens, list_prompts, read_prompt
from ..sampling import check_model
from ..sender import ClientGone
from ..server import Server
from ..service import Service
from .answers import EmbeddingList
from .fields import HARMLESS, REFUSED
from .schemas import EmbeddingRequest

_MAX_INPUTS = 2048  # OpenAI's


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The embeddings endpoint of a server."""
    routes = APIRouter()

    @routes.post("/v1/embeddings", **described(body=EmbeddingRequest, answer=EmbeddingList))
    async def embeddings(request: Request) -> Response:
        server.check_open(account_of(request))
        try:
            raw = await read_json(request)
            service = await served(server, request, raw)
            body, submits = await asyncio.to_thread(prepare_embeddings, service, notes, raw, tenant_of(request))
            found = await embed_for(request, service.client, submits)
        except (ClientDisconnect, ClientGone):
            return Response(status_code=499)  # the customary name of this case; nobody reads it
        data = await asyncio.to_thread(lambda: orjson.dumps(_answer(service, body, found)))
        return Response(data, media_type="application/json")

    return routes


def prepare_embeddings(
    service: Service, notes: FieldNotes, raw: bytes, tenant: str
) -> tuple[EmbeddingRequest, list[Submit]]:
    """Check a request; one submit for each input. Raises RequestError or UnknownModelError."""
    body = parse(raw, EmbeddingRequest)
    check_model(service, body.model)
    notes.check(body.model_extra, REFUSED, HARMLESS)
    values = list_prompts(body.input, "input")
    if len(values) > _MAX_INPUTS:
        raise InvalidRequestError(f"input has {len(values)} texts; at most {_MAX_INPUTS} are allowed", "input")
    keep = kept_tokens(service, body.truncate_prompt_tokens, 0)
    name, sampling = uuid.uuid4().hex, SamplingParams(max_tokens=0)
    submits = [
        Submit(
            request_id=f"{name}-{index}",
            prompt=read_prompt(service, value, keep, "input").ids,
            sampling=sampling,
            eos_token_ids=frozenset(),
            cache_salt=tenant + (body.cache_salt or ""),
            priority=body.priority or 0,
            pooling=body.pooling or "mean",
        )
        for index, value in enumerate(values)
    ]
    return body, submits


def _answer(service: Service, body: EmbeddingRequest, found: Sequence[Embedded]) -> dict[str, Any]:
    size = found[0].values.size
    if body.dimensions is not None and body.dimensions > size:
        raise InvalidRequestError(
            f"dimensions is {body.dimensions}; this model's embeddings have 1 to {size}", "dimensions"
        )
    tokens = sum(each.prompt_tokens for each in found)
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(_scaled(each.values, body), body.encoding_format)}
        for index, each in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": service.model_id, "usage": usage}


def _scaled(values: Vector, body: EmbeddingRequest) -> Vector:
    return values[: body.dimensions] if body.normalize is False else unit(values, body.dimensions)


def _encoded(values: Vector, encoding: str | None) -> Any:
    """base64: of the values as float32, little end first."""
    if encoding != "base64":
        return values.tolist()
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode()
