"""`isotherm stop`: end a daemon that this user runs."""

import os
import signal
import time
from typing import Annotated

import typer

from ..config import Config
from ..state import DaemonState, live_daemons
from .output import ExitCode, fail, out

_PATIENCE_S = Config().drain_s + 15.0


def stop(
    port: Annotated[
        int | None, typer.Option(help="The daemon's port, if several run.", min=1, max=65535, show_default=False)
    ] = None,
) -> None:
    """Stop the daemon: no new requests, open ones may finish within half a minute.

    Example: isotherm stop --port 8440
    """
    daemon = _choose(port)
    os.kill(daemon.pid, signal.SIGTERM)
    end = time.monotonic() + _PATIENCE_S
    with out.status(f"waiting for process {daemon.pid}"):
        while daemon.alive:
            if time.monotonic() > end:
                fail(f"process {daemon.pid} still runs; end it by: kill -9 {daemon.pid}", ExitCode.FAILURE)
            time.sleep(0.1)
    out.print(f"stopped {daemon.url}", highlight=False)


def _choose(port: int | None) -> DaemonState:
    daemons = [daemon for daemon in live_daemons() if port in (None, daemon.port)]
    if not daemons:
        fail("no daemon of yours runs" + (f" on port {port}" if port else ""), ExitCode.NO_DAEMON)
    if len(daemons) > 1:
        fail(
            f"{len(daemons)} daemons run; choose one: --port {' or '.join(str(d.port) for d in daemons)}",
            ExitCode.USAGE,
        )
    return daemons[0]
