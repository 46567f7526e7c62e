"""What operators ask: /, /health, /metrics, /version and /admin/status."""

import math
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from .. import __version__
from .errors import ENGINE_RETRY_AFTER
from .service import Service

_PATHS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "GET /v1/models",
    "GET /health",
    "GET /metrics",
    "GET /version",
    "GET /admin/status",
    "GET /admin/placement",
    "POST /admin/rebalance",
    "POST /admin/vram",
)


def router(service: Service) -> APIRouter:
    """The operators' routes of a service."""
    routes = APIRouter()

    @routes.get("/")
    async def root() -> Response:
        return _json({"server": f"isotherm {__version__}", "model": service.model_id, "paths": _PATHS})

    @routes.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        reason = service.unready()
        if reason is None:
            return _json({"status": "ok"})
        retry = {"retry-after": str(math.ceil(ENGINE_RETRY_AFTER))}
        return _json({"status": "unavailable", "reason": reason}, 503, retry)

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/version")
    async def version() -> Response:
        return _json({"version": __version__})

    @routes.get("/admin/status")
    async def status() -> Response:
        return _json(dict(service.status()))

    return routes


def _json(data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, media_type="application/json"
    )
