"""Notifier: what a service manager is told of the daemon's life, by the protocol of sd_notify(3).

A message is a datagram of lines NAME=VALUE to the socket that NOTIFY_SOCKET names. Without one nothing is told.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

logger = logging.getLogger(__name__)

_PATIENCE_S = 5.0  # for a manager that reads nothing
_TELL_EVERY_S = 1.0  # of the progress of a load
LOAD_STALL_S = 900.0  # a load that tells no progress for so long may be given up: kernels compile in silence


class Notifier:
    """Tells one service manager. Any thread may tell, and so may a signal handler.

    address: a path, or the name of an abstract socket after "@"; None tells nobody.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = None if address is None else address.replace("@", "\0", 1) if address[0] == "@" else address
        self._stage = ""
        self._told_at = 0.0
        self._stopping = False

    @property
    def supervised(self) -> bool:
        """Whether there is a manager that wants to know."""
        return self._address is not None

    def status(self, text: str) -> None:
        """How things are, in words for people."""
        self._tell(f"STATUS={_line(text)}")

    def loading(self, stage: str, done: int, total: int) -> None:
        """How far the load has come; the manager gives it more time as long as this goes on."""
        now = time.monotonic()
        if stage == self._stage and done < total and now - self._told_at < _TELL_EVERY_S:
            return
        self._stage, self._told_at = stage, now
        percent = f": {100 * done // total} %" if total > 1 else ""
        self._tell(f"STATUS={_line(stage)}{percent}", _more_time(LOAD_STALL_S))

    def ready(self, text: str) -> None:
        """The daemon serves, for the first time or after a reload."""
        self._tell("READY=1", f"STATUS={_line(text)}")

    def reload(self, work: Callable[[], str]) -> None:
        """Do what a reload asks for; what came of it, in words, becomes the status."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reloading the configuration")
        self.ready(work())

    def watchdog(self, text: str) -> None:
        """The daemon is well; `text` is the status."""
        self._tell("WATCHDOG=1", f"STATUS={_line(text)}")

    def stopping(self, text: str, within_s: float) -> None:
        """The daemon ends, by itself or because it was told to; only the first time is told."""
        if not self._stopping:
            self._stopping = True
            self._tell("STOPPING=1", f"STATUS={_line(text)}", _more_time(within_s))

    def _tell(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_PATIENCE_S)
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:  # who serves well goes on serving; the manager acts by its own clock
            logger.warning("the service manager at %s cannot be told %s: %s", self._address, lines[0], error)


def notifier_from(environment: MutableMapping[str, str]) -> Notifier:
    """For the manager that started this process. Its variable is taken out: no child is to speak in our name."""
    return Notifier(environment.pop("NOTIFY_SOCKET", None) or None)


def watchdog_s(environment: MutableMapping[str, str]) -> float | None:
    """Seconds without a sign of life after which the manager ends this process; None if it never does."""
    limit, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if not limit.isdecimal() or int(limit) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(limit) / 1e6


def _line(text: str) -> str:
    return " ".join(text.split())


def _more_time(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"
