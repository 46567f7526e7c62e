"""`isotherm key`: a new API key."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ..api_keys import key_line, new_key
from .output import ExitCode, err, fail, out, refusals


def key(
    name: Annotated[
        str | None,
        typer.Option(help="Who has it: in logs, metrics and fair shares.", show_default="made of its digest"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="The daemon's key file, to which its digest is added.", show_default=False)
    ] = None,
) -> None:
    """Make an API key, and the line by which a daemon knows it.

    The daemon's file holds a digest, from which nobody can tell the key.
    So keep the key: it is shown only now.

    Example: isotherm key --name editor --file keys.txt
    """
    secret = new_key()
    with refusals():
        line = key_line(secret, name)
    if file is None:
        out.print(secret, line, sep="\n", markup=False, highlight=False, soft_wrap=True)
        return
    try:
        _append(file, line)
    except OSError as error:
        fail(f"--file {file} cannot be written: {error}", ExitCode.USAGE)
    out.print(secret, markup=False, highlight=False, soft_wrap=True)
    err.print(f"{file} knows it from the daemon's next start on", markup=False, highlight=False, soft_wrap=True)


def _append(path: Path, line: str) -> None:
    """For its owner alone, if it is new. A last line without an end is ended first."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
        file.seek(0)
        text = file.read()
        file.write((b"" if not text or text.endswith(b"\n") else b"\n") + line.encode() + b"\n")
