"""How Ollama's objects lie on the wire, and how errors look there."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ..error_shapes import ErrorShape
from ..errors import message_of
from ..framing import Framing, line_frame


class OllamaError(BaseModel):
    error: str


def error_body(error: Exception) -> dict[str, Any]:
    """Ollama's error object."""
    return {"error": message_of(error)}


def framing_with(ping: Mapping[str, Any]) -> Framing:
    """Lines of JSON. There are no comments among them, so a line that adds nothing says that the server is alive."""
    return Framing("application/x-ndjson", line_frame, line_frame(ping), b"", error_body)


ERROR_SHAPE = ErrorShape("/api/", error_body)
