"""HTTP connections that bound the head of a request; uvicorn lets it be endless, in bytes and in time."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 2**10  # bytes of request line and headers
HEAD_TIMEOUT_S = 30.0  # from the connection, or the end of the last answer, to the end of the next head


class Connection(HttpToolsProtocol):
    """Closes what sends no whole head in time, and refuses a head that is too large."""

    max_head = MAX_HEAD
    head_timeout_s = HEAD_TIMEOUT_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._in_head = False
        self._head_bytes = 0
        self._wait_for_head()
        self._timer = self.loop.call_later(self.head_timeout_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.max_head and not self.transport.is_closing():
            self.send_400_response(f"The head of the request exceeds {self.max_head} bytes.")

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._wait_for_head()
        super().on_response_complete()

    def _wait_for_head(self) -> None:
        self._waiting_since = self.loop.time()

    def _look(self) -> None:
        left = self.head_timeout_s
        if self.cycle is None or self.cycle.response_complete:
            left -= self.loop.time() - self._waiting_since
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self._look)
