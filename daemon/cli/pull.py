"""`isotherm pull`: fetch a model from a hub."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .output import ExitCode, err, fail, out, refusals, show
from .progress import progress_bars

if TYPE_CHECKING:
    from ..library.hub import Hub

Name = Annotated[str, typer.Argument(help="OWNER/REPO, or OWNER/REPO:FORMAT.", metavar="NAME")]


def pull(
    name: Name,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="A format, such as Q4_K_M.", show_default="the best that fits"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what there is, what fits here, and how fast it would be.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the hub: fail if it is not here.")] = False,
) -> None:
    """Fetch a model: of its formats the best that fits here, by its header and a plan. Pull again to go on.

    HF_ENDPOINT names another hub, HF_TOKEN who asks. Checksums are checked.

    Example: isotherm pull Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M && isotherm serve Qwen3-30B-A3B-GGUF
    """
    from ..library.hub import Hub
    from ..library.pull import offer
    from ..library.pull import pull as fetch
    from ..library.shelf import Shelf
    from ..paths import models_folder

    hub, shelf = Hub(offline=offline), Shelf(models_folder())
    wanted = name if file_format is None else f"{name}:{file_format}"
    with refusals(), progress_bars() as report:
        if dry_run:
            _show_choices(wanted, hub)
            return
        kept = shelf.find(wanted)
        if kept is None:
            offered = offer(wanted, hub, report)
            if offered.verdict is not None:
                err.print(f"{offered.choice.label}: {offered.verdict.told}", highlight=False, markup=False)
            try:
                kept = fetch(offered, shelf, hub, report, lambda: err.print("another pull of it is under way"))
            except OSError as error:
                fail(f"{wanted} cannot be written: {error}; pull again to go on", ExitCode.FAILURE)
    out.out(str(shelf.path(kept)), highlight=False)


def _show_choices(wanted: str, hub: "Hub") -> None:
    from ..library.choices import choices_of, pick
    from ..library.fit import verdicts
    from ..library.names import parse_name
    from ..memory import GIB

    name = parse_name(wanted)
    listing = hub.listing(name.repo_id)
    table = Table(box=None, pad_edge=False)
    for title in ("format", "GiB", "fits", "tokens/s", ""):
        table.add_column(title, justify="right" if title in ("GiB", "tokens/s") else "left", overflow="fold")
    for verdict in verdicts(
        hub, listing, pick(choices_of(listing.files), name.which, name.repo_id), lambda *told: None
    ):
        rate = "" if verdict.rate is None else f"{verdict.rate:.1f}"
        fits = "yes" if verdict.fits else "no"
        table.add_row(verdict.choice.label, f"{verdict.choice.size / GIB:.2f}", fits, rate, verdict.told)
    show(table)
