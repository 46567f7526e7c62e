"""How a request comes to its model, and to its answer."""

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .auth import account_of, tenant_of
from .body import read_json
from .holding import hold
from .manners import DEFAULT, Manners
from .queued import Queued
from .server import Held, Server
from .service import Service
from .stream import unless_gone

Make = Callable[[Service, bytes, str], Response]


async def answer(
    server: Server, request: Request, make: Make, *, manners: Manners = DEFAULT, queues: bool = True
) -> Response:
    """Read the body and make the response of it in a thread, which checks, renders and tokenises. Where the model has
    to be loaded first, that is waited for.

    The last argument of `make` is the tenant. queues: whether the request comes into the engine's queue.
    """
    account, tenant = account_of(request), tenant_of(request)
    if queues:
        server.check_open(account)  # a full queue should not pay for reading
    try:
        raw = await (request.body() if manners.any_type else read_json(request))
    except ClientDisconnect:
        return Response(status_code=499)  # the customary name of this case; nobody reads it
    name, streams, held = await _model_of(server, raw, manners)

    def work(service: Service) -> Response:
        if queues:
            service.client.check_open(account)  # nor for tokenising, after a body that was long in coming
        return make(service, raw, tenant)

    if held is None:
        return Queued(server, name, work, manners.framing(name) if streams else None)
    return await asyncio.to_thread(work, hold(request.scope, held))


async def served(server: Server, request: Request, raw: bytes, manners: Manners = DEFAULT) -> Service:
    """The model of a request that is answered in one piece, once it is loaded. Raises UnknownModelError, ClientGone,
    and what `Fleet.lease` does."""
    name, _, held = await _model_of(server, raw, manners)
    if held is None:
        held = await unless_gone(request.receive, server.models.lease(name))
    return hold(request.scope, held)


async def _model_of(server: Server, raw: bytes, manners: Manners) -> tuple[str, bool, Held | None]:
    """Its id, whether the request wants a stream, and a lease if it is ready."""
    models = server.models
    if len(models.names) == 1:  # whoever reads the body looks at the name
        held = models.lease_now(models.default)
        if held is not None:
            return models.default, False, held
    model, streams = await asyncio.to_thread(manners.read, raw)
    name = server.named(model, manners.plain)
    return name, streams, models.lease_now(name)
