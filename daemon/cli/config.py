"""`isotherm config`: what a daemon would be told."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from .output import out, refusals

config = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

File = Annotated[
    Path | None,
    typer.Argument(help="A configuration file.", show_default="the one that serve would take"),
]


@config.command("show")
def show_config(
    file: File = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print what is set as a configuration file.")] = False,
) -> None:
    """Show every setting, and where its value comes from.

    Example: isotherm config show
    """
    from ..settings.sample import as_toml as toml
    from ..settings.settings import Told, gather
    from ..settings.shown import rows

    with refusals():
        settings = gather(Told(flags={}, file=file), os.environ)
    if as_toml:
        out.out(toml(settings), highlight=False, end="")
        return
    found = rows(settings)
    if as_json:
        out.out(json.dumps([{"key": key, "value": value, "from": origin} for key, value, origin in found], indent=2))
        return
    if not out.is_terminal:  # whoever reads a pipe wants whole lines
        for key, value, origin in found:
            out.out(f"{key:28}  {'' if value is None else value}  {origin}", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("key", "value", "from"):
        table.add_column(title, overflow="fold")
    for key, value, origin in found:
        table.add_row(*map(Text, (key, "" if value is None else str(value), origin)))
    out.print(table)


@config.command("check")
def check_config(file: File = None) -> None:
    """Say what is wrong with a configuration file, and with the files it names:
    exits with 2 if anything is.

    Example: isotherm config check /etc/isotherm/config.toml
    """
    from ..settings.named_files import check_files
    from ..settings.settings import Told, gather

    with refusals():
        settings = gather(Told(flags={}, file=file), os.environ)
        check_files(settings)
    where = "no file: all defaults" if settings.file is None else f"{settings.file} is right"
    out.print(f"{where}; it serves {', '.join(settings.models)}", highlight=False, markup=False, soft_wrap=True)


@config.command("sample")
def sample_config() -> None:
    """Print a configuration file to begin with: every key with its default, commented out.

    Example: isotherm config sample > config.toml
    """
    from ..settings.sample import sample

    out.out(sample(), highlight=False, end="")
