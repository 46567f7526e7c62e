"""Queued: answers a request whose model has to be loaded first."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .framing import Framing
from .holding import hold
from .record import Record
from .sender import ClientGone
from .server import Held, Server
from .service import Service
from .stream import SSE_HEADERS, unless_gone

logger = logging.getLogger(__name__)


class Queued(Response):
    """Waits for the model, then answers as `make` says, which is called in a thread.

    framing: of a stream, which is opened when the first ping is due; what fails from then on is told in it. None: the
    answer comes in one piece, and nothing can be said before.
    """

    def __init__(
        self, server: Server, model: str, make: Callable[[Service], Response], framing: Framing | None
    ) -> None:
        super().__init__()
        self._server, self._model, self._make, self._framing = server, model, make, framing
        self._open = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            held = await unless_gone(receive, self._wait(scope, send))
            response = await asyncio.to_thread(self._make, hold(scope, held))
            await response(scope, receive, self._continued(send) if self._open else send)
        except ClientGone as gone:
            record: Record = scope["state"]["record"]
            record.outcome = "gone"
            logger.info("request %s: %s", scope["state"]["request_id"], gone)
        except Exception as error:
            if self._framing is None or not self._open:
                raise
            logger.info("request %s ended in an error: %s", scope["state"]["request_id"], error)
            last = self._framing.frame(self._framing.error(error)) + self._framing.done
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _wait(self, scope: Scope, send: Send) -> Held:
        lease = asyncio.ensure_future(self._server.models.lease(self._model))
        try:
            while not (await asyncio.wait((lease,), timeout=self._server.limits.ping_interval))[0]:
                if self._framing is not None:
                    await self._ping(scope, send, self._framing)
            return lease.result()
        except BaseException:
            lease.cancel()
            with suppress(Exception, asyncio.CancelledError):
                (await lease).release()
            raise

    async def _ping(self, scope: Scope, send: Send, framing: Framing) -> None:
        if not self._open:
            self._open = True
            scope["state"]["record"].stream = True
            headers = Response(headers=SSE_HEADERS, media_type=framing.media_type).raw_headers
            headers = [(name, value) for name, value in headers if name != b"content-length"]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": framing.ping, "more_body": True})

    @staticmethod
    def _continued(send: Send) -> Send:
        """What goes on with a stream that was opened."""

        async def send_on(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        return send_on
