"""What the two completion endpoints share."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ...daemon.messages import Usage
from ..body import read_json
from ..service import Service
from ..stream import Exchange, Job

Prepare = Callable[[bytes, str], Job]


async def answer(service: Service, request: Request, prepare: Prepare) -> Response:
    """Read the body, check, render and tokenise it in a thread, and hand the job to the engine.

    The second argument of `prepare` is the tenant, whose prefix cache is his own.
    """
    service.client.check_open()  # a full queue should not pay for reading and tokenising
    try:
        raw = await read_json(request)
    except ClientDisconnect:
        return Response(status_code=499)  # the customary name of this case; nobody reads it
    tenant: str = request.scope["state"].get("tenant", "")
    return Exchange(service, await asyncio.to_thread(prepare, raw, tenant))


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """The fields that all chunks of an answer have in common."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def usage_fields(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
