"""GET /api/version, /api/tags and /api/ps, POST /api/show: the one model that is served, as Ollama describes models."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..answering import answer
from ..body import parse
from ..openapi import described
from ..service import Service
from ..tools.formats import HARMONY
from .answers import OllamaModels, OllamaShown, OllamaVersion
from .framing import OllamaError
from .names import check_name, listed_name
from .request import OllamaShow

API_VERSION = "0.12.6"  # of Ollama, whose API this is: clients refuse older servers for what these lacked
_NEVER = "2318-01-01T00:00:00Z"


def router(service: Service) -> APIRouter:
    """The endpoints that describe a service's model."""
    routes = APIRouter()

    @routes.head("/api/version", **described(errors=None))
    @routes.get("/api/version", **described(answer=OllamaVersion, errors=OllamaError))
    async def version() -> Response:
        return _json({"version": API_VERSION})

    @routes.head("/api/tags", **described(errors=None))
    @routes.get("/api/tags", **described(answer=OllamaModels, errors=OllamaError))
    async def tags() -> Response:
        return _json({"models": [{**_entry(service), "modified_at": _created(service)}]})

    @routes.get("/api/ps", **described(answer=OllamaModels, errors=OllamaError))
    async def ps() -> Response:
        loaded = {"expires_at": _NEVER, "size_vram": 0, "context_length": service.max_context}
        return _json({"models": [{**_entry(service), **loaded}]})

    @routes.post("/api/show", **described(body=OllamaShow, answer=OllamaShown, errors=OllamaError))
    async def show(request: Request) -> Response:
        return await answer(service, request, lambda raw, _tenant: _show(service, raw), any_type=True)

    return routes


def _show(service: Service, raw: bytes) -> Response:
    body = parse(raw, OllamaShow)
    check_name(service, body.model or body.name)
    architecture = str(_model(service).get("architecture") or "unknown")
    info = {"general.architecture": architecture, f"{architecture}.context_length": service.max_context}
    return _json(
        {
            "modelfile": "",
            "parameters": "",
            "template": service.chat_template.source,
            "details": _details(service),
            "model_info": info,
            "capabilities": _capabilities(service),
            "modified_at": _created(service),
        }
    )


def _capabilities(service: Service) -> list[str]:
    thinks = service.speech.tags is not None or service.speech.format is HARMONY
    calls = "tools" in service.chat_template.source
    return ["completion", *(["tools"] if calls else []), *(["thinking"] if thinks else [])]


def _entry(service: Service) -> dict[str, Any]:
    name = listed_name(service.model_id)
    memory = service.status().get("memory") or {}
    return {
        "name": name,
        "model": name,
        "size": memory.get("weight_bytes", 0),
        "digest": hashlib.sha256(service.model_id.encode()).hexdigest(),
        "details": _details(service),
    }


def _details(service: Service) -> dict[str, Any]:
    model = _model(service)
    family = str(model.get("architecture") or "unknown")
    formats = model.get("formats") or {}
    return {
        "parent_model": "",
        "format": "gguf" if str(model.get("path", "")).endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": max(formats, key=lambda name: formats[name].get("tensors", 0), default=""),
    }


def _model(service: Service) -> Mapping[str, Any]:
    model: Mapping[str, Any] = service.status().get("model") or {}
    return model


def _created(service: Service) -> str:
    return datetime.fromtimestamp(service.created, UTC).isoformat().replace("+00:00", "Z")


def _json(data: dict[str, Any]) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
