"""A service manager's side of sd_notify(3): a socket that keeps what it is told."""

import socket
from pathlib import Path


class NotifySocket:
    """Receives messages; each is a list of lines."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def __enter__(self) -> "NotifySocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self, timeout: float) -> list[str]:
        """The next message; fails with TimeoutError if none comes."""
        self._socket.settimeout(timeout)
        return self._socket.recv(1 << 16).decode().splitlines()

    def until(self, line: str, timeout: float) -> list[list[str]]:
        """All messages up to the first one that holds a line."""
        messages = [self.next(timeout)]
        while line not in messages[-1]:
            messages.append(self.next(timeout))
        return messages

    def rest(self) -> list[list[str]]:
        """What has come and was not read yet."""
        self._socket.setblocking(False)
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(1 << 16).decode().splitlines())
            except BlockingIOError:
                return messages
