"""Pure ASGI middleware: the last safety net, and the limits on bodies."""

import asyncio
import logging

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..daemon.errors import OverloadedError
from .errors import BodyTimeoutError, BodyTooLargeError, error_response
from .record import Record
from .service import Limits

logger = logging.getLogger(__name__)


class SafetyNet:
    """Turns an error that nobody foresaw into a plain 500 and a log entry with the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record: Record = scope["state"]["record"]
        try:
            await self.app(scope, receive, send)
        except Exception as error:
            if record.status:  # an answer has begun
                raise  # the server can only cut the connection
            logger.exception("request %s failed", scope["state"]["request_id"])
            await error_response(error)(scope, receive, send)


class BodyLimit:
    """Bounds bodies: the size of each, by its declared length, else while it is read; how long it may take to come; and
    what the bodies of all open requests may hold together."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self.limits = limits
        self._held = 0  # bytes, by requests that are open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self.limits.max_body:
            await error_response(self._too_large())(scope, receive, send)
            return
        body = _Body(receive, self.limits.body_timeout)

        async def receive_within_limits() -> Message:
            message = await body.receive()
            self._held += len(message.get("body", b""))
            if body.received > self.limits.max_body:
                raise self._too_large()
            if self._held > self.limits.max_bodies:
                raise OverloadedError("the bodies of open requests fill the memory set aside for them", 1.0)
            return message

        try:
            await self.app(scope, receive_within_limits, send)
        finally:
            self._held -= body.received

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"the request body exceeds the limit of {self.limits.max_body} bytes")


class _Body:
    """One request's body on its way: how many bytes have come, and by when the last must have."""

    def __init__(self, receive: Receive, timeout: float) -> None:
        self._receive = receive
        self._timeout = timeout
        self._end = asyncio.get_running_loop().time() + timeout
        self._complete = False
        self.received = 0

    async def receive(self) -> Message:
        """The next message. Raises BodyTimeoutError if the body is not complete in time."""
        if self._complete:  # what comes now is the end of the connection
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeoutError(f"the request body was not complete after {self._timeout:g} s") from None
        self._complete = not message.get("more_body", False)
        self.received += len(message.get("body", b""))
        return message
