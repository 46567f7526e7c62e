"""`isotherm calibrate`: measure this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .calibrate_tables import names_table, profile_tables
from .output import ExitCode, fail, out, refusals
from .progress import progress_bars
from .target import check_target

if TYPE_CHECKING:
    from ...placement.hardware import HardwareProfile

_MOST_THREADS = 1024


def calibrate(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="Measure only what this model needs, a .gguf file or a safetensors folder.",
            show_default="all kinds of weights",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads.", min=1, max=_MOST_THREADS, show_default="one per physical core"),
    ] = None,
    file: Annotated[Path | None, typer.Option("--out", help="Write the profile to a file, too.")] = None,
    show: Annotated[
        str | None,
        typer.Option("--show", help="Show a profile instead, by name or file.", metavar="PROFILE", show_default=False),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="List the nominal profiles that come along instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what this machine can do, for plans: bandwidths, the kernels, what calls cost. It takes a minute or two.

    The profile is kept, and used wherever none is named. Let nothing else run meanwhile.

    Example: isotherm calibrate model.gguf
    """
    if names:
        _list(as_json)
        return
    check_target("--out", file)
    profile = _named(show) if show is not None else _measured(model, threads)
    if file is not None:
        _write(profile, file)
    if as_json:
        from ...placement.hardware_file import profile_text

        out.out(profile_text(profile), highlight=False, end="")
    else:
        for table in profile_tables(profile):
            out.print(table, highlight=False)


def _list(as_json: bool) -> None:
    import json

    from ...placement.hardware_catalogue import nominal_names, nominal_profile

    profiles = [nominal_profile(name) for name in nominal_names()]
    if as_json:
        out.out(json.dumps({profile.name: profile.source for profile in profiles}), highlight=False)
    else:
        out.print(names_table(profiles), highlight=False)


def _named(name: str) -> "HardwareProfile":
    from ...placement.hardware_catalogue import find_profile

    with refusals():
        return find_profile(name)


def _measured(model: Path | None, threads: int | None) -> "HardwareProfile":
    from ...experts.outline import outline
    from ..calibrate import COMMON_KINDS, calibrate
    from ..config import Config
    from ..machine import default_threads

    with refusals(), progress_bars() as report:
        kinds = COMMON_KINDS if model is None else outline(model, Config().kv_cache).kinds
        return calibrate(kinds, threads or default_threads(), report)


def _write(profile: "HardwareProfile", file: Path) -> None:
    from ...placement.hardware_file import save_profile

    try:
        save_profile(profile, file)
    except OSError as error:
        fail(
            f"--out {file} cannot be written ({error.strerror or error}); name a file in a folder that exists",
            ExitCode.FAILURE,
        )
