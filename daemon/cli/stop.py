"""`isotherm stop`: end a daemon that this user runs."""

import os
import signal
import time

from ..state import DaemonState, live_daemons
from .daemon_options import Port, Url
from .output import ExitCode, fail, out

_TIDY_S = 15.0  # beyond the drain: a step under way, and what is kept of the traffic


def stop(url: Url = None, port: Port = None) -> None:
    """Stop the daemon: no new requests, open ones may finish, by default within half a minute.

    Example: isotherm stop --port 8440
    """
    daemon = _choose(url, port)
    os.kill(daemon.pid, signal.SIGTERM)
    end = time.monotonic() + daemon.drain_s + _TIDY_S
    with out.status(f"waiting for process {daemon.pid}"):
        while daemon.alive:
            if time.monotonic() > end:
                fail(f"process {daemon.pid} still runs; end it by: kill -9 {daemon.pid}", ExitCode.FAILURE)
            time.sleep(0.1)
    out.print(f"stopped {daemon.url}", highlight=False)


def _choose(url: str | None, port: int | None) -> DaemonState:
    from .remote import normal_url

    address = None if url is None else normal_url(url)
    daemons = [d for d in live_daemons() if port in (None, d.port) and address in (None, d.url)]
    if not daemons:
        where = f" on port {port}" if port else f" at {address}" if address else ""
        fail(f"no daemon of yours runs{where}", ExitCode.NO_DAEMON)
    if len(daemons) > 1:
        fail(
            f"{len(daemons)} daemons run; choose one: --port {' or '.join(str(d.port) for d in daemons)}",
            ExitCode.USAGE,
        )
    return daemons[0]
