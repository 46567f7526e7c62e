"""The options of `isotherm simulate`, which name several values each, and how they are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..config import readable
from .output import ExitCode, fail
from .sizes import bytes_of
from .target import check_target
from .values import one_of, parts

if TYPE_CHECKING:
    from ...placement.replay import CacheKind

MOST_STREAMS, MOST_THREADS, MOST_CONTEXT = 512, 1024, 1 << 24
_FILES = ("csv", "png", "json")

Source = Annotated[
    Path | None,
    typer.Argument(
        help="A .gguf file or a folder with a config.json; a trace (.npz) by itself gives hit rates; none is the demo "
        "model.",
        metavar="MODEL|TRACE",
        show_default=False,
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option(help="Machines by name or by profile.", metavar="NAME|FILE,...", show_default="this machine"),
]
Vram = Annotated[
    str | None,
    typer.Option(
        help="What may be used of each accelerator.", metavar="SIZE,...", show_default="quarters of what is free"
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Tokens of prompt and answer together.", metavar="N,...", show_default="as it is served"),
]
Streams = Annotated[str, typer.Option(help="Streams that decode at the same time.", metavar="N,...")]
Formats = Annotated[
    str | None,
    typer.Option("--format", help="As if the weights were in it.", metavar="NAME,...", show_default="the model's own"),
]
Threads = Annotated[
    str | None, typer.Option(help="CPU threads.", metavar="N,...", show_default="those of the machine's profile")
]
Policies = Annotated[
    str,
    typer.Option(
        help="How experts are kept: static, lru, lfu, lfru, seeded; belady is the bound of all.", metavar="NAME,..."
    ),
]
OutDir = Annotated[
    Path | None,
    typer.Option(
        help="Write simulate.csv, simulate.png and simulate.json there.", metavar="FOLDER", show_default=False
    ),
]
Csv = Annotated[Path | None, typer.Option(help="Write the table as CSV.", metavar="FILE", show_default=False)]
Png = Annotated[Path | None, typer.Option(help="Draw it.", metavar="FILE", show_default=False)]
Json = Annotated[Path | None, typer.Option(help="Write it as JSON.", metavar="FILE", show_default=False)]


def targets(named: Mapping[str, Path | None], folder: Path | None) -> dict[str, Path]:
    """Files to write, which could be written as far as can be seen before the work is done."""
    files = {kind: path for kind, path in named.items() if path is not None}
    if folder is not None:
        if files:
            fail(f"--out-dir does not go with {', '.join('--' + kind for kind in files)}", ExitCode.USAGE)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fail(f"--out-dir {readable(folder)} cannot be made: {error.strerror or error}", ExitCode.USAGE)
        files = {kind: folder / f"simulate.{kind}" for kind in _FILES}
    for kind, path in files.items():
        check_target(f"--{kind}", path)
    if len({path.absolute() for path in files.values()}) < len(files):
        fail(f"{' and '.join('--' + kind for kind in files)} name one file; name another file for each", ExitCode.USAGE)
    return files


def policies(text: str) -> tuple["CacheKind", ...]:
    from ...placement.replay import KINDS

    return tuple(cast("CacheKind", one_of("--policy", part.lower(), KINDS)) for part in parts("--policy", text))


def size(text: str) -> int:
    nbytes = bytes_of(text)
    if nbytes is None:
        fail(f"--vram has {text!r}; name sizes such as 0,8GiB,12GiB", ExitCode.USAGE)
    return nbytes
