"""The command line. Commands import what is heavy when they run, so that help is there at once."""

import io
import os
import signal
import sys


def main() -> None:
    """The `isotherm` command."""
    _prepare_streams()
    try:
        from .app import app
    except KeyboardInterrupt:  # what comes later is typer's to handle
        raise SystemExit(128 + signal.SIGINT) from None
    app()


def _prepare_streams() -> None:
    """Standard streams that are open, and take any text: a terminal may know no UTF-8, a pipe may send what is none."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: what is opened next would pass for it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
