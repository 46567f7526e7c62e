"""What the two completion endpoints share."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ...daemon.messages import Usage
from ..answering import answer
from ..chat.dialect import ChatUsage
from ..fields import FieldNotes
from ..server import Server
from ..service import Service
from ..stream import Exchange, Job

Prepare = Callable[[Service, FieldNotes, bytes, str], Job]


def endpoint(path: str, prepare: Prepare, server: Server, notes: FieldNotes, told: Any) -> APIRouter:
    """A POST route whose requests `prepare` checks and turns into jobs. told: of `openapi.described`.

    The last argument of `prepare` is the tenant, whose prefix cache is his own.
    """
    routes = APIRouter()

    def make(service: Service, raw: bytes, tenant: str) -> Response:
        return Exchange(service, prepare(service, notes, raw, tenant))

    @routes.post(path, **told)
    async def post(request: Request) -> Response:
        return await answer(server, request, make)

    return routes


class Envelope:
    """What lies around the choices of an answer and of all its chunks."""

    def __init__(self, prefix: str, kind: str, model: str, include_usage: bool) -> None:
        name = f"{prefix}-{uuid.uuid4().hex}"
        self._head = {"id": name, "object": kind, "created": int(time.time()), "model": model}
        self._include_usage = include_usage

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A chunk of a stream; where usage is to come, the others say null."""
        usage = {"usage": None} if self._include_usage else {}
        return {**self._head, "choices": [choice], **usage}

    def closing(self, usage: Usage | ChatUsage) -> list[dict[str, Any]]:
        """The only chunk with usage, since clients add up what they see; none if it was not asked for."""
        return [{**self._head, "choices": [], "usage": _usage_fields(usage)}] if self._include_usage else []

    def whole(self, choices: list[dict[str, Any]], usage: Usage | ChatUsage) -> dict[str, Any]:
        """An answer that is not streamed."""
        return {**self._head, "choices": choices, "usage": _usage_fields(usage)}


def _usage_fields(usage: Usage | ChatUsage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **_details(usage),
    }


def _details(usage: Usage | ChatUsage) -> dict[str, Any]:
    if isinstance(usage, Usage):
        return {}
    return {"completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens}}
