"""POST /v1/responses, and what clients do with the responses that are kept."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from ...daemon.errors import InvalidRequestError
from ..answering import answer
from ..auth import tenant_of
from ..errors import UnknownResponseError
from ..fields import FieldNotes
from ..openapi import described
from ..server import Server
from ..service import Service
from .answers import DeletedResponse, InputItems, ResponseObject
from .create import Creator
from .items import Item
from .manners import MANNERS
from .request import ResponsesRequest
from .running import Running
from .store import ResponseStore

Limit = Annotated[int, Query(ge=1, le=100)]


def router(server: Server, notes: FieldNotes) -> APIRouter:
    """The Responses endpoints of a server."""
    routes = APIRouter()
    store = ResponseStore(server.limits.max_responses, server.limits.max_response_bytes)
    running = Running()

    def make(service: Service, raw: bytes, tenant: str) -> Response:
        return Creator(service, notes, store, running).make(raw, tenant)

    def show(tenant: str, response_id: str) -> dict[str, Any]:
        run = running.find(tenant, response_id)
        return store.get(tenant, response_id).response if run is None else run.dialect.now()

    @routes.post("/v1/responses", **described(body=ResponsesRequest, answer=ResponseObject, stream="text/event-stream"))
    async def create(request: Request) -> Response:
        return await answer(server, request, make, manners=MANNERS)

    @routes.get("/v1/responses/{response_id}", **described(answer=ResponseObject))
    async def get(request: Request, response_id: str, stream: bool = False) -> Response:
        if stream:
            raise InvalidRequestError("stream is not supported here: a response is streamed while it is made", "stream")
        return _json(show(tenant_of(request), response_id))

    @routes.delete("/v1/responses/{response_id}", **described(answer=DeletedResponse))
    async def delete(request: Request, response_id: str) -> Response:
        store.delete(tenant_of(request), response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    @routes.post("/v1/responses/{response_id}/cancel", **described(answer=ResponseObject))
    async def cancel(request: Request, response_id: str) -> Response:
        run = running.find(tenant_of(request), response_id)
        if run is None:
            status = store.get(tenant_of(request), response_id).response["status"]
            raise InvalidRequestError(f"the response is {status} and cannot be cancelled any more", "response_id")
        await running.cancel(run)
        return _json(run.dialect.now())

    @routes.get("/v1/responses/{response_id}/input_items", **described(answer=InputItems))
    async def input_items(
        request: Request,
        response_id: str,
        limit: Limit = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        items = store.get(tenant_of(request), response_id).items
        return _json(_page(items if order == "asc" else items[::-1], limit, after))

    return routes


def _page(items: Sequence[Item], limit: int, after: str | None) -> dict[str, Any]:
    if after is not None:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise UnknownResponseError(f"the response has no input item {after[:80]!r}")
        items = items[place + 1 :]
    page = list(items[:limit])
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }


def _json(data: dict[str, Any]) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
