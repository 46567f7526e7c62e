"""Request bodies: read on the event loop, parsed and checked in a thread."""

from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from ..daemon.errors import InvalidRequestError
from .errors import from_validation

M = TypeVar("M", bound=BaseModel)


async def read_json(request: Request) -> bytes:
    """The raw body. Raises InvalidRequestError for another content type, ClientDisconnect if it ends early."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise InvalidRequestError(f"content-type is {media_type or 'missing'}; it must be application/json")
    return await request.body()


def parse(raw: bytes, model: type[M]) -> M:
    """The body as `model`. Raises InvalidRequestError that names the first field at fault."""
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise from_validation(error) from None
