"""Socket activation: the listener that a service manager has opened for this process, see sd_listen_fds(3)."""

import os
import socket
from collections.abc import MutableMapping

from .address import BindError, give_up_dead_clients

FIRST_FD = 3


def passed_listener(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that was passed, None if there is none. Its variables are taken out: children get no socket.

    Raises BindError for what cannot be served on.
    """
    pid, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal() or int(count) == 0:
        return None
    if int(count) > 1:
        raise BindError(f"{count} sockets were passed; write one ListenStream= in the socket unit")
    os.set_inheritable(FIRST_FD, False)
    listener = socket.socket(fileno=FIRST_FD)
    if listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        raise BindError("what was passed is no TCP socket; write ListenStream= with an address and a port")
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise BindError("the socket that was passed does not listen; write Accept=no in the socket unit")
    give_up_dead_clients(listener)
    return listener
