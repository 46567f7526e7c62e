"""GET /admin/plan and GET /admin/experts: what was planned and why, and how experts are used. No step is waited for."""

from typing import Any

import orjson
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from ..placement.trace import Phase
from .openapi import described
from .server import Server


class PlanAnswer(BaseModel):
    """plan: as in a plan's file; None where the daemon serves without one."""

    plan: dict[str, Any] | None


class ExpertsAnswer(BaseModel):
    """Lists by layer that has experts, none of a model without any.

    heat: how many times its fair share of the layer's choices each expert got lately; tokens: of how many, older ones
    faded. where: of each expert the place of its device in `devices`; coming: layer, expert and device of those that
    are being brought.
    """

    phase: Phase
    devices: list[str]
    layers: list[int]
    experts: int
    top_k: int
    tokens: float
    heat: list[list[float]]
    where: list[list[int]]
    coming: list[list[int]]


def router(server: Server) -> APIRouter:
    """The routes of a server. model: which of several; none is the default."""
    routes = APIRouter()

    @routes.get("/admin/plan", **described(answer=PlanAnswer))
    async def plan(model: str | None = None) -> Response:
        return _json({"plan": server.service(model).plan()})

    @routes.get("/admin/experts", **described(answer=ExpertsAnswer))
    async def experts(phase: Phase = "decode", model: str | None = None) -> Response:
        return _json(server.service(model).experts(phase))

    return routes


def _json(data: Any) -> Response:
    return Response(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
