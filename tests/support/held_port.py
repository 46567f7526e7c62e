"""A port of this machine that nobody else is given."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """It refuses connections but while somebody serves there, who names it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that others may listen, as this one does not
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
