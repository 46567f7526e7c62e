"""The OpenAPI document: what each route takes and gives.

Routes read their bodies themselves, so FastAPI cannot know what is in them: `described` tells it.
"""

from functools import cache
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response

from .. import __version__

_REFERENCE = "#/components/schemas/{model}"
_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "Each event of the stream",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}


# Of every route; `described` adds what their bodies are.
FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request cannot be served"},
    "5XX": {"description": "The server cannot serve it now"},
}


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorDetail


def described(
    *,
    body: Any = None,
    answer: Any = None,
    stream: str | None = None,
    errors: Any = ErrorBody,
    may_be_empty: bool = False,
) -> Any:
    """What to pass on to the decorator of a route, as keywords.

    body, answer: a pydantic model or any other type that pydantic knows; None for a body that is empty, and for an
    answer that is no JSON. stream: the media type of an answer in pieces, if a client may ask for one. errors: of 4xx
    and 5xx. may_be_empty: the body may be left out.
    """
    content: dict[str, Any] = {} if answer is None else {"application/json": {"schema": _schema(answer, answers=True)}}
    if stream is not None:
        content[stream] = {"schema": _EVENT if stream == "text/event-stream" else {"type": "string"}}
    failure: dict[str, Any] = {}
    if errors is not None:
        failure = {"content": {"application/json": {"schema": _schema(errors, answers=True)}}}
    responses = {
        200: {"description": "The answer", **({"content": content} if content else {})},
        **{status: {**told, **failure} for status, told in FAILURES.items()},
    }
    extra = {}
    if body is not None:
        schema = _schema(body, answers=False)
        extra["requestBody"] = {"required": not may_be_empty, "content": {"application/json": {"schema": schema}}}
    return {"responses": responses, "openapi_extra": extra, "response_class": Response}


def router(app: FastAPI) -> APIRouter:
    """GET /openapi.json, of all routes that the application has by the time it is first asked."""
    routes = APIRouter()
    made: list[bytes] = []

    @routes.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not made:
            made.append(orjson.dumps(document(app)))
        return Response(made[0], media_type="application/json")

    return routes


def document(app: FastAPI) -> dict[str, Any]:
    """The document of an application's routes."""
    told = get_openapi(title="Isotherm", version=__version__, routes=app.routes)
    made: dict[str, Any] = orjson.loads(orjson.dumps(told))  # a copy: what is told of a route stays as it is
    parts: dict[str, Any] = made.setdefault("components", {}).setdefault("schemas", {})
    _lift(made, parts)
    made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{"key": []}, {}]
    return made


@cache
def _schema(kind: Any, *, answers: bool) -> dict[str, Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    schema = adapter.json_schema(ref_template=_REFERENCE, mode="serialization" if answers else "validation")
    if isinstance(kind, type) and issubclass(kind, BaseModel) and "$ref" not in schema:  # by its name, as others are
        parts = schema.pop("$defs", {})
        return {"$ref": _REFERENCE.format(model=kind.__name__), "$defs": {**parts, kind.__name__: schema}}
    return schema


def _lift(node: Any, parts: dict[str, Any]) -> None:
    """Have what schemas define in themselves stand in `parts`, where their references point."""
    if isinstance(node, dict):
        found = node.pop("$defs", {}) if isinstance(node.get("$defs"), dict) else {}
        for name, part in found.items():
            if parts.setdefault(name, part) != part:
                raise ValueError(f"two different models are called {name}; give one another name")
        for child in [*node.values(), *found.values()]:
            _lift(child, parts)
    elif isinstance(node, list):
        for child in node:
            _lift(child, parts)
