"""How every dialect's POST is answered: admitted, read, and worked on in a thread."""

import asyncio
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from .auth import account_of, tenant_of
from .body import read_json
from .service import Service


async def answer(
    service: Service, request: Request, make: Callable[[bytes, str], Response], *, any_type: bool = False
) -> Response:
    """Read the body and make the response of it in a thread, which checks, renders and tokenises.

    The last argument of `make` is the tenant. any_type: whatever the content type says, the body is JSON.
    """
    account = account_of(request)
    service.client.check_open(account)  # a full queue should not pay for reading
    try:
        raw = await (request.body() if any_type else read_json(request))
    except ClientDisconnect:
        return Response(status_code=499)  # the customary name of this case; nobody reads it
    service.client.check_open(account)  # nor for tokenising, after a body that was long in coming
    return await asyncio.to_thread(make, raw, tenant_of(request))
