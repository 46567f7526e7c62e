"""Sender: what goes to one client, who may leave at any moment, or stop reading."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from starlette.types import Message, Send


class ClientGone(Exception):
    """The client closed the connection, or stopped reading from it."""


class Sender:
    """Used by the task that enters it. One timer serves all sends: a token costs no new one."""

    def __init__(self, send: Send, patience: float) -> None:
        """patience: seconds for which a client may leave a full connection unread."""
        self._send = send
        self._patience = patience
        self._since: float | None = None  # when the send under way began
        self._over = False

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(self._patience, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    async def start(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The head of an answer with status 200. Raises ClientGone, as all that sends does."""
        await self._pass({"type": "http.response.start", "status": 200, "headers": headers})

    async def body(self, data: bytes, *, more: bool) -> None:
        """The body, or a part of it."""
        await self._pass({"type": "http.response.body", "body": data, "more_body": more})

    async def _pass(self, message: Message) -> None:
        self._since = self._loop.time()
        try:
            await self._send_or_wait(message)
        except asyncio.CancelledError:
            if not self._over or self._task is None:
                raise
            self._task.uncancel()
            raise ClientGone(f"the client read nothing for {self._patience} s") from None
        except OSError as error:  # how servers of ASGI 2.4 report a closed connection
            raise ClientGone(f"the client left: {error}") from error
        finally:
            self._since = None

    async def _send_or_wait(self, message: Message) -> None:
        """uvloop closes a connection before its server notices; who watches the client ends the wait after that."""
        try:
            await self._send(message)
        except RuntimeError as error:
            if "closed" not in str(error):
                raise
            await asyncio.Event().wait()

    def _look(self) -> None:
        left = self._patience if self._since is None else self._since + self._patience - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self._over = True
            self._task.cancel()
