"""What is answered while the first model loads: each dialect's own error, and a health that says how far it is."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson

from .. import __version__
from ..daemon.errors import EngineError
from .anthropic.framing import ERROR_SHAPE as ANTHROPIC
from .errors import ENGINE_RETRY_AFTER, error_body
from .ollama.framing import ERROR_SHAPE as OLLAMA

HEADERS = {
    "content-type": "application/json",
    "retry-after": str(math.ceil(ENGINE_RETRY_AFTER)),
    "x-should-retry": "true",
    "connection": "close",
}


def answer_while_loading(path: str, model: str, stage: str) -> tuple[HTTPStatus, Mapping[str, str], bytes]:
    """Status, headers and body for a path. stage: how far the load is, in words."""
    reason = f"{model} is still loading{f' ({stage})' if stage else ''}"
    body: dict[str, Any]
    if path == "/version":
        return HTTPStatus.OK, HEADERS, orjson.dumps({"version": __version__})
    if path == "/health":
        body = {"status": "unavailable", "reason": reason, "loading": model}
    else:
        shape = next((each.body for each in (ANTHROPIC, OLLAMA) if path.startswith(each.prefix)), error_body)
        body = dict(shape(EngineError(f"{reason}; try again in a few seconds")))
    return HTTPStatus.SERVICE_UNAVAILABLE, HEADERS, orjson.dumps(body)
