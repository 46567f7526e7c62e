"""GET /api/version, /api/tags and /api/ps, POST /api/show: the models that are served, as Ollama describes them.

Of one that is not loaded only the name is known; asking about it does not load it.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..body import parse
from ..openapi import described
from ..server import Server
from ..service import Service
from ..tools.formats import HARMONY
from .answers import OllamaModels, OllamaShown, OllamaVersion
from .framing import OllamaError
from .names import listed_name, plain_name
from .request import OllamaShow

API_VERSION = "0.12.6"  # of Ollama, whose API this is: clients refuse older servers for what these lacked
_NEVER = "2318-01-01T00:00:00Z"


def router(server: Server) -> APIRouter:
    """The endpoints that describe a server's models."""
    routes = APIRouter()

    @routes.head("/api/version", **described(errors=None))
    @routes.get("/api/version", **described(answer=OllamaVersion, errors=OllamaError))
    async def version() -> Response:
        return _json({"version": API_VERSION})

    @routes.head("/api/tags", **described(errors=None))
    @routes.get("/api/tags", **described(answer=OllamaModels, errors=OllamaError))
    async def tags() -> Response:
        entries = [_entry(name, _found(server, name)) for name in server.models.names]
        return _json({"models": [{**entry, "modified_at": _time(server.created)} for entry in entries]})

    @routes.get("/api/ps", **described(answer=OllamaModels, errors=OllamaError))
    async def ps() -> Response:
        expiry = {member["id"]: member["unloads_in_s"] for member in server.models.show()}
        entries = []
        for name, served in server.models.ready():
            left, service = expiry[name], served.service
            expires = _NEVER if left is None else _time(time.time() + left)
            loaded = {"expires_at": expires, "size_vram": 0, "context_length": service.max_context}
            entries.append({**_entry(name, service), **loaded})
        return _json({"models": entries})

    @routes.post("/api/show", **described(body=OllamaShow, answer=OllamaShown, errors=OllamaError))
    async def show(request: Request) -> Response:
        try:
            raw = await request.body()
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        return await asyncio.to_thread(_show, server, raw)

    return routes


def _show(server: Server, raw: bytes) -> Response:
    body = parse(raw, OllamaShow)
    name = server.named(body.model or body.name, plain_name)
    service = _found(server, name)
    shown: dict[str, Any] = {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(service),
        "model_info": {},
        "capabilities": ["completion"],
        "modified_at": _time(server.created),
    }
    if service is not None:
        architecture = str(_model(service).get("architecture") or "unknown")
        shown |= {
            "template": service.chat_template.source,
            "model_info": {
                "general.architecture": architecture,
                f"{architecture}.context_length": service.max_context,
            },
            "capabilities": _capabilities(service),
            "modified_at": _time(service.created),
        }
    return _json(shown)


def _capabilities(service: Service) -> list[str]:
    thinks = service.speech.tags is not None or service.speech.format is HARMONY
    calls = "tools" in service.chat_template.source
    return ["completion", *(["tools"] if calls else []), *(["thinking"] if thinks else [])]


def _entry(model_id: str, service: Service | None) -> dict[str, Any]:
    name = listed_name(model_id)
    memory = {} if service is None else service.status().get("memory") or {}
    return {
        "name": name,
        "model": name,
        "size": memory.get("weight_bytes", 0),
        "digest": hashlib.sha256(model_id.encode()).hexdigest(),
        "details": _details(service),
    }


def _details(service: Service | None) -> dict[str, Any]:
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


def _model(service: Service | None) -> Mapping[str, Any]:
    model: Mapping[str, Any] = {} if service is None else service.status().get("model") or {}
    return model


def _found(server: Server, name: str) -> Service | None:
    served = server.models.find(name)
    return None if served is None else served.service


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _json(data: dict[str, Any]) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
