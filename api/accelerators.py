"""GET /admin/placement and POST /admin/vram: where everything lies, and how much memory of accelerators may be used."""

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import Response

from ..daemon.errors import EngineError
from ..daemon.messages import Command
from ..daemon.vram import SetVram, ShowPlacement
from .body import parse, read_json
from .openapi import described
from .server import Server
from .service import Service

PATIENCE_S = 60.0  # a step that takes longer than this is not waited for


class Sizes(RootModel[dict[str, Any]]):
    """Such as {"gpu0": "6GiB"}; null is all that it had at first."""


def router(server: Server) -> APIRouter:
    """The routes of a server. model: which of several; none is the default."""
    routes = APIRouter()

    @routes.get("/admin/placement", **described(answer=dict[str, Any]))
    async def placement(model: str | None = None) -> Response:
        return await answered(server.service(model), ShowPlacement())

    @routes.post("/admin/vram", **described(body=Sizes, answer=dict[str, Any]))
    async def vram(request: Request, model: str | None = None) -> Response:
        sizes = parse(await read_json(request), Sizes)
        return await answered(server.service(model), SetVram.of(sizes.root))

    return routes


async def answered(service: Service, command: Command, patience_s: float = PATIENCE_S) -> Response:
    """What the engine says to a command, as JSON. Raises the errors of `daemon.errors`."""
    asked = service.client.ask(command)
    try:
        answer: Any = await asyncio.wait_for(asyncio.wrap_future(asked), patience_s)
    except TimeoutError:
        if asked.cancelled():
            told = f"the step under way has not ended within {patience_s:g} s; nothing was changed"
        else:
            told = f"what was asked for was begun, and has not ended within {patience_s:g} s; it goes on"
        raise EngineError(told) from None
    return Response(orjson.dumps(answer), media_type="application/json")
