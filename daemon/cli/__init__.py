"""The command line. Commands import what is heavy when they run, so that help is there at once."""

import io
import sys


def main() -> None:
    """The `isotherm` command."""
    from .app import app

    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal or a pipe may know no UTF-8, or send what is none
    app()
