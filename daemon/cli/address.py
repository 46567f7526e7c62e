"""The address that a daemon listens on."""

import socket


class BindError(OSError):
    """The address cannot be listened on; the message says why."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, so that it is ours before the model loads. Raises BindError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BindError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener
