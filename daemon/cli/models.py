"""`isotherm list`, `isotherm show` and `isotherm rm`: the models of this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from .output import ExitCode, fail, out, refusals, show

if TYPE_CHECKING:
    from ..library.shelf import Kept, Shelf

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def list_models(as_json: AsJson = False) -> None:
    """List the models that were pulled.

    Example: isotherm list --json
    """
    from ..memory import GIB

    shelf = _shelf()
    kept = shelf.all()
    if as_json:
        out.out(
            json.dumps([asdict(each) | {"path": str(shelf.path(each))} for each in kept], indent=2), highlight=False
        )
        return
    if not kept:
        out.print("none yet; isotherm pull OWNER/REPO fetches one", highlight=False)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("name", "GiB", "path"):
        table.add_column(title, overflow="fold", justify="right" if title == "GiB" else "left")
    for each in kept:
        table.add_row(each.name, f"{each.size / GIB:.2f}", str(shelf.path(each)))
    show(table)


def show_model(
    name: Annotated[Path, typer.Argument(help="A pulled model's name, a .gguf file or a safetensors folder.")],
    as_json: AsJson = False,
) -> None:
    """Show what a model is: its sizes, formats, context, experts, and the memory that it needs.

    Example: isotherm show model.gguf
    """
    from ..library.resolve import model_path
    from ..library.summary import summary

    with refusals():
        found = summary(model_path(name))
    if as_json:
        out.out(json.dumps(found, indent=2), highlight=False)
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in found.items():
        table.add_row(key.replace("_", " "), _shown(value))
    show(table)


def remove_model(
    name: Annotated[str, typer.Argument(help="A pulled model's name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a pulled model's files, and its packed weights.

    Example: isotherm rm Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M --yes
    """
    from ..memory import GIB

    shelf = _shelf()
    with refusals():
        kept = shelf.find(name)
        if kept is None:
            fail(f"{name!r} was not pulled; isotherm list shows those that were", ExitCode.USAGE)
        if not yes and not typer.confirm(f"Remove {kept.name} ({kept.size / GIB:.2f} GiB)?"):
            raise typer.Exit(ExitCode.FAILURE)
        _remove(shelf, kept)
    out.out(f"removed {kept.name}", highlight=False)


def _remove(shelf: "Shelf", kept: "Kept") -> None:
    from ...experts.errors import ModelError
    from ...experts.model import open_model
    from ...experts.store import PackedStore, remove_store
    from ..paths import packed_folder

    try:
        packed: Path | None = PackedStore(packed_folder(), open_model(shelf.path(kept))).path
    except ModelError:  # what cannot be served has none
        packed = None
    try:
        shelf.remove(kept)
        if packed is not None and packed.exists():
            remove_store(packed, "its model was removed")
    except OSError as error:
        fail(f"{kept.name} cannot be removed: {error}", ExitCode.FAILURE)


def _shelf() -> "Shelf":
    from ..library.shelf import Shelf
    from ..paths import models_folder

    return Shelf(models_folder())


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number} in {name}" for name, number in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
