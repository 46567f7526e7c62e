"""What operators ask: /, /health, /metrics, /version and /admin/status."""

import math
from typing import Any, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from .. import __version__
from .errors import ENGINE_RETRY_AFTER
from .openapi import described
from .service import Service

_PATHS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "GET /v1/models",
    "POST /tokenize",
    "POST /detokenize",
    "POST /apply-template",
    "GET /openapi.json",
    "GET /health",
    "GET /metrics",
    "GET /version",
    "GET /admin/status",
    "GET /admin/placement",
    "POST /admin/rebalance",
    "POST /admin/vram",
)


class Root(BaseModel):
    server: str
    model: str
    paths: list[str]


class Health(BaseModel):
    """reason: of a server that cannot serve."""

    status: Literal["ok", "unavailable"]
    reason: str = ""


class Version(BaseModel):
    version: str


def router(service: Service) -> APIRouter:
    """The operators' routes of a service."""
    routes = APIRouter()

    @routes.get("/", **described(answer=Root))
    async def root() -> Response:
        return _json({"server": f"isotherm {__version__}", "model": service.model_id, "paths": _PATHS})

    @routes.head("/health", **described(errors=None))
    @routes.get("/health", **described(answer=Health, errors=Health))
    async def health() -> Response:
        reason = service.unready()
        if reason is None:
            return _json({"status": "ok"})
        retry = {"retry-after": str(math.ceil(ENGINE_RETRY_AFTER))}
        return _json({"status": "unavailable", "reason": reason}, 503, retry)

    @routes.get("/metrics", **described(stream="text/plain"))
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/version", **described(answer=Version))
    async def version() -> Response:
        return _json({"version": __version__})

    @routes.get("/admin/status", **described(answer=dict[str, Any]))
    async def status() -> Response:
        return _json(dict(service.status()))

    return routes


def _json(data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, media_type="application/json"
    )
