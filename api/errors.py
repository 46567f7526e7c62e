"""How errors look to a client: OpenAI's nested object where no other dialect is spoken, with one table from exception
class to status.

Besides the daemon's errors these are raised here:

ApiError(Exception)
├── InvalidApiKeyError      401, no or a wrong key
├── UnknownModelError       404, a model that is not served
├── UnknownResponseError    404, a response that is not kept
├── BodyTooLargeError       413, the body exceeds the limit
└── BodyTimeoutError        408, the body did not come in time
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..daemon.errors import EngineError, InvalidRequestError, OverloadedError, RequestError

ENGINE_RETRY_AFTER = 5.0
_PLAIN_WORDS = {  # where pydantic's own name Python's types or our classes
    "dict_type": "Input should be a JSON object",
    "model_type": "Input should be a JSON object",
    "list_type": "Input should be a JSON array",
}
_UNION_MEMBERS = {"str"}  # pydantic's way to say which kind of value was tried; others have brackets
_MAX_ECHO = 1000  # characters of a text that may repeat what the client sent


class ApiError(Exception):
    """An error of the HTTP side. `param` names the field at fault, if there is one."""

    param: str | None = None


class InvalidApiKeyError(ApiError):
    """No key or a wrong one."""


class UnknownModelError(ApiError):
    """The named model is not served."""

    param = "model"


class UnknownResponseError(ApiError):
    """No response of this id is kept."""

    param = "response_id"


class BodyTooLargeError(ApiError):
    """The request body exceeds the limit."""


class BodyTimeoutError(ApiError):
    """The request body did not come in time."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Status and names under which a class of errors is reported."""

    status: int
    type: str
    code: str | None = None


_INTERNAL = Kind(500, "server_error", "internal_error")
_KINDS: dict[type[Exception], Kind] = {
    RequestError: Kind(400, "invalid_request_error"),
    InvalidApiKeyError: Kind(401, "authentication_error", "invalid_api_key"),
    UnknownModelError: Kind(404, "invalid_request_error", "model_not_found"),
    UnknownResponseError: Kind(404, "invalid_request_error", "response_not_found"),
    BodyTooLargeError: Kind(413, "invalid_request_error", "request_too_large"),
    BodyTimeoutError: Kind(408, "invalid_request_error", "request_timeout"),
    OverloadedError: Kind(429, "rate_limit_error", "rate_limit_exceeded"),
    EngineError: Kind(503, "service_unavailable_error", "engine_unavailable"),
}
HANDLED: tuple[type[Exception], ...] = (*_KINDS, HTTPException, RequestValidationError)


def kind_of(error: Exception) -> Kind:
    """The row of the table for this error; errors that nobody foresaw are internal ones."""
    if isinstance(error, HTTPException):
        return Kind(error.status_code, "invalid_request_error")
    return next((_KINDS[base] for base in type(error).__mro__ if base in _KINDS), _INTERNAL)


def message_of(error: Exception) -> str:
    """What a client is told. An unforeseen error's own text stays in the log."""
    if kind_of(error) is _INTERNAL:
        return "The server failed on this request. Its log has the details under the x-request-id."
    return _cut(str(error.detail) if isinstance(error, HTTPException) else str(error))


def error_body(error: Exception) -> dict[str, Any]:
    """OpenAI's nested error object."""
    kind = kind_of(error)
    code = getattr(error, "code", None) or kind.code
    param: str | None = getattr(error, "param", None)
    return {"error": {"message": message_of(error), "type": kind.type, "param": param and _cut(param), "code": code}}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_ECHO else f"{text[:_MAX_ECHO]}..."


class ErrorResponse(Response):
    """An error in the words of the dialect that the path speaks: `scope["state"]["error_body"]`, else OpenAI's."""

    def __init__(self, error: Exception, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(orjson.dumps(error_body(error)), status, headers, media_type="application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        words = scope.get("state", {}).get("error_body")
        if words is not None:
            self.body = orjson.dumps(words(self._error))
            self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def error_response(error: Exception) -> Response:
    """The error as a response, with the headers by which clients decide whether to try again."""
    status = kind_of(error).status
    headers = {"x-should-retry": "true" if status in (408, 429, 503) else "false"}
    if isinstance(error, OverloadedError | EngineError):
        wait = error.retry_after if isinstance(error, OverloadedError) else ENGINE_RETRY_AFTER
        headers["retry-after"] = str(max(1, math.ceil(wait)))
    if isinstance(error, InvalidApiKeyError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, BodyTooLargeError | BodyTimeoutError):
        headers["connection"] = "close"  # the rest of the body will not be read
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    return ErrorResponse(error, status, headers)


async def handle_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for every class in HANDLED."""
    if isinstance(error, HTTPException) and error.status_code == 404:
        error = HTTPException(
            404, f"there is nothing at {request.url.path}; GET / lists the paths, most begin with /v1"
        )
    if isinstance(error, RequestValidationError):
        error = invalid_fields(list(error.errors()))
    return error_response(error)


def from_validation(error: ValidationError) -> InvalidRequestError:
    """A pydantic error as one of ours: the first fault, named by its path."""
    return invalid_fields(error.errors(include_url=False, include_context=False, include_input=False))


def invalid_fields(faults: list[Any]) -> InvalidRequestError:
    """The first of pydantic's fault records, which each have `loc` and `msg`."""
    first = faults[0]
    path = ""
    for part in first["loc"]:
        if part in _UNION_MEMBERS or "[" in str(part):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    words = _PLAIN_WORDS.get(first["type"], first["msg"])
    return InvalidRequestError(f"{path or 'body'}: {words}", path or None)
