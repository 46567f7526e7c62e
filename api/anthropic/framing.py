"""How Anthropic's objects lie on the wire, and how errors look there."""

from typing import Any, Literal

from pydantic import BaseModel

from ..error_shapes import ErrorShape
from ..errors import kind_of, message_of
from ..framing import Framing, named_frame

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    type: Literal["error"]
    error: AnthropicErrorDetail


def error_body(error: Exception) -> dict[str, Any]:
    """Anthropic's error object, which is also the event of its name."""
    status = kind_of(error).status
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message_of(error)}}


FRAMING = Framing("text/event-stream", named_frame, named_frame({"type": "ping"}), b"", error_body, opens_at_once=True)
ERROR_SHAPE = ErrorShape("/v1/messages", error_body, "request-id")
