"""The options of all commands that talk to a running daemon."""

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[
    str | None, typer.Option(help="Where the daemon is; by default the one that this user runs.", show_default=False)
]
Port = Annotated[
    int | None,
    typer.Option(help="The daemon's port on this machine.", min=1, max=65535, metavar="N", show_default=False),
]
ApiKeyFile = Annotated[
    Path | None, typer.Option(help="A file whose first key is sent, if the daemon asks for one.", show_default=False)
]
