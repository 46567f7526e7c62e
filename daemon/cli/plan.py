"""`isotherm plan`: where a model should lie, how fast it will be and why, before it is loaded."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import Config
from .default_command import DefaultCommand
from .model_options import AcceleratorNames, KvKind, Trace, kv_kind
from .output import ExitCode, fail, out, refusals
from .progress import progress_bars
from .sizes import bytes_of
from .target import check_target

if TYPE_CHECKING:
    from ...placement.plan import Plan

_DEFAULT = Config()
_DEVICE = re.compile(r"gpu(\d{1,2})", re.IGNORECASE | re.ASCII)

plan = typer.Typer(cls=DefaultCommand, context_settings={"help_option_names": ["-h", "--help"]})


Model = Annotated[
    Path | None,
    typer.Argument(
        help="A .gguf file, of which the header is enough, or a folder with a config.json; none is the demo model.",
        show_default=False,
    ),
]
Vram = Annotated[
    list[str] | None,
    typer.Option(
        help="What may be used of an accelerator; several times for several.",
        metavar="gpuN=SIZE",
        show_default="all that is free",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        help="Tokens of prompt and answer together, at the end of which decode is predicted.",
        show_default="as it is served, decode at 512",
    ),
]
Hardware = Annotated[
    str | None,
    typer.Option(help="A machine by name or by its profile.", metavar="NAME|FILE", show_default="this machine"),
]
WeightFormat = Annotated[
    str | None, typer.Option("--format", help="As if the weights were in this format.", show_default="the model's own")
]
Out = Annotated[Path | None, typer.Option("--out", help="Write the plan as JSON.", metavar="FILE", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@plan.command()
def make(
    model: Model = None,
    vram: Vram = None,
    context: Context = None,
    streams: Annotated[int, typer.Option(help="How many streams decode at the same time.")] = 1,
    hardware: Hardware = None,
    accelerator: AcceleratorNames = None,
    trace: Trace = None,
    kv_cache: KvKind = _DEFAULT.kv_cache,
    weight_format: WeightFormat = None,
    to: Out = None,
    as_json: AsJson = False,
) -> None:
    """Predict how fast a model will be, and say where its parts should lie and why. No weight is read.

    Example: isotherm plan model.gguf --context 8192 --streams 4

    Example: isotherm plan model.gguf --hardware FILE --vram gpu0=20GiB --out plan.json

    Example: isotherm plan model.gguf --accelerator emulated:vram=2GiB,link=16GBps

    Example: isotherm plan diff before.json after.json
    """
    from ...placement.plan_file import save_plan
    from ..assembly import demo_model
    from ..library.resolve import model_path
    from ..planning import PlanOptions, make_plan

    check_target("--out", to)
    with refusals(), progress_bars() as report:
        kind = kv_kind(kv_cache)
        options = PlanOptions(
            model=model_path(model) if model else demo_model(report),
            vram=_sizes(vram or ()),
            context=context,
            streams=streams,
            hardware=hardware,
            accelerators=tuple(accelerator or ()),
            trace=trace,
            kv_cache=kind,
            weight_format=None if weight_format is None else weight_format.upper(),
        )
        made = make_plan(options, report)
        if to is not None:
            save_plan(made, to)
    _show(made, as_json)
    if to is not None and not as_json:
        out.print(f"\nWritten to {to}.", highlight=False, markup=False, soft_wrap=True)


@plan.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A plan that was written by --out.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="Another one of the same model.", metavar="B")],
    as_json: AsJson = False,
) -> None:
    """Say what moves from plan A to plan B, and what that changes.

    Example: isotherm plan diff before.json after.json
    """
    from dataclasses import asdict

    from ...placement.plan_diff import compare
    from ...placement.plan_file import load_plan
    from .plan_tables import diff_tables

    with refusals():
        found = compare(load_plan(before), load_plan(after))
    if as_json:
        out.out(json.dumps(asdict(found)), highlight=False)
        return
    for table in diff_tables(found):
        out.print(table, highlight=False)


def _show(made: "Plan", as_json: bool) -> None:
    from ...placement.plan_file import to_json
    from .plan_tables import plan_tables

    if as_json:
        out.out(json.dumps(to_json(made)), highlight=False)
        return
    for table in plan_tables(made, ascii_only=out.options.ascii_only):
        out.print(table, highlight=False)


def _sizes(texts: Sequence[str]) -> dict[int, int]:
    """Bytes by the number of an accelerator."""
    found: dict[int, int] = {}
    for text in texts:
        device, nbytes = _size(text)
        if device in found:
            fail(f"--vram names gpu{device} twice; leave one of them out", ExitCode.USAGE)
        found[device] = nbytes
    return found


def _size(text: str) -> tuple[int, int]:
    """The number of an accelerator and bytes."""
    name, _, size = text.strip().partition("=")
    device, nbytes = _DEVICE.fullmatch(name), bytes_of(size)
    if device is None or nbytes is None:
        fail(f"--vram is {text!r}; name an accelerator and a size, such as gpu0=10GiB or gpu0=0", ExitCode.USAGE)
    return int(device[1]), nbytes
