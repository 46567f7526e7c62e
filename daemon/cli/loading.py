"""LoadingServer: answers for a daemon whose first model is still loading."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from ...experts.progress import Progress
from .address import BindError

# For a path, a model and how far it is: status, headers and body.
Answer = Callable[[str, str, str], tuple[int, Mapping[str, str], bytes]]

_MOST = 32  # clients at once; others wait for their turn, or for the daemon itself
_TURN_S = 0.05  # between two looks for room
_PATIENCE_S = 10.0  # with a client that sends slowly
_MOST_BODY = 8 << 20  # bytes that are read of a request, so that its client comes to the answer
_CHUNK = 1 << 16


class LoadingServer(ThreadingHTTPServer):
    """Says 503 to all that comes, with the model and how far it is, and whoever was accepted gets that answer. Whoever
    was not finds the daemon itself: connections that wait stay with the listener."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listener: socket.socket, model: str, answer: Answer) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener.dup()
        self._answer, self._model, self._stage = answer, model, ""
        self._room = threading.Semaphore(_MOST)
        self._clients: set[socket.socket] = set()

    def report(self, stage: str, done: int, total: int) -> None:
        """How far the load is, as a `Progress`."""
        self._stage = f"{stage}, {done / total:.0%}" if total else stage

    def answer(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        return self._answer(path, self._model, self._stage)

    def get_request(self) -> tuple[socket.socket, Any]:
        if not self._room.acquire(timeout=_TURN_S):
            raise BlockingIOError("the most clients are here; this one waits")
        try:
            client, address = super().get_request()
        except OSError:
            self._room.release()
            raise
        self._clients.add(client)
        return client, address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._clients.discard(request)
            self._room.release()

    def end(self) -> None:
        """Accept nobody any more. Whoever was accepted has some seconds to take the answer."""
        self.shutdown()
        self.server_close()
        late = threading.Timer(_PATIENCE_S, self._cut)
        late.daemon = True
        late.start()

    def _cut(self) -> None:
        for client in list(self._clients):
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: LoadingServer
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any method
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        status, headers, body = self.server.answer(urlsplit(self.path).path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def finish(self) -> None:
        """Take what the client still sends: a connection that is closed over it takes the answer along."""
        super().finish()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            left = _MOST_BODY
            while left > 0 and (part := self.connection.recv(_CHUNK)):
                left -= len(part)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(listener: socket.socket, model: str, answer: Answer) -> Iterator[Progress]:
    """Meanwhile clients are answered; the progress is what they are told. A listener that listens already is a service
    manager's: its clients wait until the daemon serves, as those do who start it by asking. Raises BindError."""
    if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        yield lambda stage, done, total: None
        return
    try:
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        raise BindError(f"cannot listen: {error}") from error
    server = LoadingServer(listener, model, answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="isotherm-loading", daemon=True)
    thread.start()
    try:
        yield server.report
    finally:
        server.end()
        thread.join()
