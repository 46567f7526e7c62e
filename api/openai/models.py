"""GET /v1/models and /v1/models/{id}."""

from typing import Any

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from ..openapi import described
from ..sampling import check_model
from ..service import Service
from .answers import ModelList, ModelObject


def router(service: Service) -> APIRouter:
    """The list of models, which holds the one that is served."""
    routes = APIRouter()
    model: dict[str, Any] = {
        "id": service.model_id,
        "object": "model",
        "created": service.created,
        "owned_by": "isotherm",
        "max_model_len": service.max_context,
        "tool_format": service.speech.format.name,
        "reasoning_format": service.speech.reasoning_format,
    }

    @routes.get("/v1/models", **described(answer=ModelList))
    async def list_models() -> Response:
        return _json({"object": "list", "data": [model]})

    @routes.get("/v1/models/{model_id:path}", **described(answer=ModelObject))
    async def get_model(model_id: str) -> Response:
        check_model(service, model_id)
        return _json(model)

    return routes


def _json(data: dict[str, Any]) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
