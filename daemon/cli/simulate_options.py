"""The options of `isotherm simulate`, which name several values each, and how they are read."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from ..config import readable
from .output import ExitCode, fail
from .target import check_target

if TYPE_CHECKING:
    from ...placement.replay import CacheKind

MOST_STREAMS, MOST_THREADS, MOST_CONTEXT = 512, 1024, 1 << 24
_SIZE = re.compile(r"(?P<size>\d{1,9}(\.\d{1,6})?)(?P<unit>[KMGT]i?B)", re.IGNORECASE | re.ASCII)
_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}
_MOST_DIGITS = 20
_FILES = ("csv", "png", "json")
T = TypeVar("T")

Source = Annotated[
    Path | None,
    typer.Argument(
        help="A .gguf file or a folder with a config.json; a trace (.npz) by itself gives hit rates; none is the demo "
        "model.",
        metavar="MODEL|TRACE",
        show_default=False,
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(help="Which experts the traffic goes to.", metavar="FILE", show_default="the model's own, if any"),
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
KvKind = Annotated[str, typer.Option(help="Numbers of the KV cache: int16, int8, f16, bf16, f32.", metavar="KIND")]
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


def parts(option: str, text: str) -> list[str]:
    """What stands between commas, each once."""
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        fail(f"{option} is {text!r}; name values with commas between them", ExitCode.USAGE)
    return list(dict.fromkeys(found))


def values_of(option: str, text: str | None, read: Callable[[str], T]) -> tuple[T | None, ...]:
    return (None,) if text is None else tuple(read(part) for part in parts(option, text))


def one_of(option: str, text: str, known: Sequence[str]) -> str:
    if text not in known:
        fail(f"{option} is {text.lower()!r}; choose from {', '.join(name.lower() for name in known)}", ExitCode.USAGE)
    return text


def policies(text: str) -> tuple["CacheKind", ...]:
    from ...placement.replay import KINDS

    return tuple(cast("CacheKind", one_of("--policy", part.lower(), KINDS)) for part in parts("--policy", text))


def numbers(option: str, text: str, most: int) -> tuple[int, ...]:
    named = parts(option, text)
    # Python makes no number of thousands of digits.
    if not all(part.isdecimal() and len(part) < _MOST_DIGITS and 1 <= int(part) <= most for part in named):
        fail(f"{option} is {text!r}; name numbers from 1 to {most} with commas, such as 1,4,8", ExitCode.USAGE)
    return tuple(dict.fromkeys(int(part) for part in named))


def size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None and text != "0":
        fail(f"--vram has {text!r}; name sizes such as 0,8GiB,12GiB", ExitCode.USAGE)
    if match is None:
        return 0
    unit = match["unit"].lower()
    return int(float(match["size"]) * (1024 if "i" in unit else 1000) ** _UNITS[unit[0]])
