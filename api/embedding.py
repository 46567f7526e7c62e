"""Embeddings: pooled states of many prompts, computed a few at a time so that they do not fill the queue."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from ..daemon.client import EngineClient
from ..daemon.errors import EngineError
from ..daemon.messages import Embedding, Failed, Finished, Submit, Usage
from .auth import account_of
from .record import Record
from .stream import unless_gone

Vector = NDArray[np.float32]

_AT_ONCE = 8  # of one client's request; what they share of a step is as large as the step


@dataclass(frozen=True, slots=True)
class Embedded:
    """values: float32 [hidden size], as the engine gave them. prompt_tokens: of the prompt."""

    values: Vector
    prompt_tokens: int


async def embed(client: EngineClient, submits: Sequence[Submit]) -> list[Embedded]:
    """What comes of requests with a pooling, in their order. Where one fails, or the caller is cancelled, the others
    are aborted. Raises what `EngineClient.submit` does, and EngineError."""
    gate = asyncio.Semaphore(_AT_ONCE)
    tasks = [asyncio.ensure_future(_gated(gate, client, submit)) for submit in submits]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def embed_for(request: Request, client: EngineClient, submits: Sequence[Submit]) -> list[Embedded]:
    """`embed` on a request's account, as long as its client waits; its record is told of the usage. Raises ClientGone
    too."""
    account = account_of(request)
    found = await unless_gone(request.receive, embed(client, [replace(each, tenant=account) for each in submits]))
    record: Record = request.scope["state"]["record"]
    record.usage = Usage(prompt_tokens=sum(each.prompt_tokens for each in found), cached_tokens=0, completion_tokens=0)
    return found


def unit(values: Vector, dimensions: int | None = None) -> Vector:
    """The first `dimensions` values, scaled to length 1. What has no length stays as it is."""
    kept = values[:dimensions].astype(np.float64)
    length = float(np.sqrt(np.square(kept).sum()))
    return (kept / length if length else kept).astype(np.float32)


async def _gated(gate: asyncio.Semaphore, client: EngineClient, submit: Submit) -> Embedded:
    async with gate:
        return await _one(client, submit)


async def _one(client: EngineClient, submit: Submit) -> Embedded:
    mailbox, values, ended = client.submit(submit), None, False
    try:
        async for message in mailbox:
            ended = isinstance(message, Finished | Failed)
            if isinstance(message, Embedding):
                values = message.values
            elif isinstance(message, Failed):
                raise message.error
    finally:
        if not ended:
            client.abort(submit.request_id)
    if values is None:
        raise EngineError("the request was aborted by the server")
    return Embedded(values, len(submit.prompt))
