"""What operators ask: /, /health, /metrics, /version and /admin/status."""

import math
from typing import Any, Literal

import orjson
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import __version__
from .errors import ENGINE_RETRY_AFTER
from .openapi import described
from .server import Server

_PATHS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/embeddings",
    "GET /v1/models",
    "POST /tokenize",
    "POST /detokenize",
    "POST /apply-template",
    "GET /openapi.json",
    "POST /v1/responses",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "GET /v1/responses/{id}/input_items",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/show",
    "POST /api/embed",
    "GET /api/tags",
    "GET /api/ps",
    "GET /api/version",
    "GET /health",
    "GET /metrics",
    "GET /version",
    "GET /admin/status",
    "GET /admin/placement",
    "GET /admin/experts",
    "GET /admin/plan",
    "POST /admin/rebalance",
    "POST /admin/vram",
    "GET /ui",
)
_OLLAMA = "Ollama is running"  # the words by which its clients know that somebody speaks their dialect


class Root(BaseModel):
    server: str
    model: str
    ollama_api: str
    paths: list[str]


class Health(BaseModel):
    """reason: of a server that cannot serve. loading: a model for which requests wait."""

    status: Literal["ok", "unavailable"]
    reason: str = ""
    loading: str = ""


class Version(BaseModel):
    version: str


def router(server: Server) -> APIRouter:
    """The operators' routes of a server."""
    routes = APIRouter()

    @routes.head("/", **described(errors=None))
    @routes.get("/", **described(answer=Root, stream="text/plain"))
    async def root(request: Request) -> Response:
        if "text/plain" in request.headers.get("accept", ""):
            return PlainTextResponse(_OLLAMA)
        about = {"server": f"isotherm {__version__}", "model": server.models.default, "ollama_api": _OLLAMA}
        return _json({**about, "paths": _PATHS})

    @routes.head("/health", **described(errors=None))
    @routes.get("/health", **described(answer=Health, errors=Health))
    async def health() -> Response:
        reason = server.unready()
        if reason is None:
            loading = ", ".join(server.models.loading())
            return _json({"status": "ok", "loading": loading} if loading else {"status": "ok"})
        retry = {"retry-after": str(math.ceil(ENGINE_RETRY_AFTER))}
        return _json({"status": "unavailable", "reason": reason}, 503, retry)

    @routes.get("/metrics", **described(stream="text/plain"))
    async def metrics() -> Response:
        return Response(server.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.get("/version", **described(answer=Version))
    async def version() -> Response:
        return _json({"version": __version__})

    @routes.get("/admin/status", **described(answer=dict[str, Any]))
    async def status(model: str | None = None) -> Response:
        return _json(dict(server.status(None if model is None else server.named(model))))

    return routes


def _json(data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY), status, headers, media_type="application/json"
    )
