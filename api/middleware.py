"""Pure ASGI middleware: request ids, the last safety net, and the limit on bodies."""

import logging
import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import BodyTooLargeError, error_response

logger = logging.getLogger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestId:
    """Gives each response an x-request-id: the client's own if it is a sane one, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        theirs = Headers(scope=scope).get("x-request-id", "")
        request_id = theirs if _SANE_ID.fullmatch(theirs) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, send_with_id)


class SafetyNet:
    """Turns an error that nobody foresaw into a plain 500 and a log entry with the traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            if started:
                raise  # the server can only cut the connection
            logger.exception("request %s failed", scope["state"]["request_id"])
            await error_response(error)(scope, receive, send)


class BodyLimit:
    """Refuses a body over `limit` bytes: by its declared length, else while it is being read."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        error = BodyTooLargeError(f"the request body exceeds the limit of {self.limit} bytes")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self.limit:
            await error_response(error)(scope, receive, send)
            return
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise error
            return message

        await self.app(scope, receive_within_limit, send)
