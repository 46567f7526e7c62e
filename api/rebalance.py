"""POST /admin/rebalance: what moving experts would bring, doing it, and taking it back."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, StrictBool
from starlette.requests import Request
from starlette.responses import Response

from ..daemon.rebalance import Rebalance
from .accelerators import answered
from .body import parse, read_json
from .openapi import described
from .server import Server


class RebalanceFields(BaseModel):
    """The body, see `daemon.rebalance`; without one it is a dry run."""

    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = True
    rollback: StrictBool = False
    automatic: StrictBool | None = None


def router(server: Server) -> APIRouter:
    """The route of a server. model: which of several; none is the default."""
    routes = APIRouter()

    told = described(body=RebalanceFields, answer=dict[str, Any], may_be_empty=True)

    @routes.post("/admin/rebalance", **told)
    async def rebalance(request: Request, model: str | None = None) -> Response:
        raw = await read_json(request) if await request.body() else b"{}"
        fields = parse(raw, RebalanceFields)
        command = Rebalance(dry_run=fields.dry_run, back=fields.rollback, automatic=fields.automatic)
        return await answered(server.service(model), command)

    return routes
