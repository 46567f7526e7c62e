"""GET /v1/models and /v1/models/{id}."""

from typing import Any

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from ..errors import UnknownModelError
from ..openapi import described
from ..server import Server
from .answers import ModelList, ModelObject


def router(server: Server) -> APIRouter:
    """The list of models: those that are loaded now, and those that would be."""
    routes = APIRouter()

    @routes.get("/v1/models", **described(answer=ModelList))
    async def list_models() -> Response:
        return _json({"object": "list", "data": [_model(server, name) for name in server.models.names]})

    @routes.get("/v1/models/{model_id:path}", **described(answer=ModelObject))
    async def get_model(model_id: str) -> Response:
        if not model_id:
            raise UnknownModelError("no model is named; GET /v1/models lists them")
        return _json(_model(server, server.named(model_id)))

    return routes


def _model(server: Server, name: str) -> dict[str, Any]:
    """Of one that is not loaded, no more is known than its name."""
    model: dict[str, Any] = {"id": name, "object": "model", "created": server.created, "owned_by": "isotherm"}
    served = server.models.find(name)
    if served is not None:
        service = served.service
        model |= {
            "created": service.created,
            "max_model_len": service.max_context,
            "tool_format": service.speech.format.name,
            "reasoning_format": service.speech.reasoning_format,
        }
    return model


def _json(data: dict[str, Any]) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
