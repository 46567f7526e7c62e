"""The address that a daemon listens on."""

import ipaddress
import socket

_UNREAD_MS = 120_000  # longer than the HTTP side waits for the client of a stream


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
            give_up_dead_clients(listener)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise BindError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine reaches the listener."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def give_up_dead_clients(listener: socket.socket) -> None:
    """Let the system end a connection whose client is gone, or takes nothing of what it is sent for too long."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
