"""`isotherm profile`: record where a model's tokens are routed, and show it."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ..config import Config, readable
from .default_command import DefaultCommand
from .model_options import NoPackCache
from .output import ExitCode, fail, out, refusals
from .progress import progress_bars
from .target import check_target

if TYPE_CHECKING:
    from ...placement.trace import RoutingTrace
    from ..routing_profile import Profile

_MOST_TOKENS = 1 << 16

Prompts = Annotated[
    str | None,
    typer.Option(
        help='Prompts to run: a .jsonl file with {"messages": ...} or {"prompt": ...} on each line, a text file of '
        "one a line, a folder of .jsonl files and of texts, or - for standard input.",
        metavar="FILE|FOLDER|-",
        show_default="a bundled mixed sample",
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Write a trace of these prompts alone.", metavar="FILE", show_default="add to the model's own"
    ),
]
_HELP = "Run prompts through a model and record which experts their tokens go to, or show it."

profile = typer.Typer(help=_HELP, cls=DefaultCommand, context_settings={"help_option_names": ["-h", "--help"]})


@profile.command()
def record(
    model: Annotated[
        Path | None,
        typer.Argument(help="A .gguf file or a safetensors folder; none is the demo model.", show_default=False),
    ] = None,
    prompts: Prompts = None,
    to: To = None,
    tokens: Annotated[int, typer.Option(help="Tokens to generate for each prompt.", min=1, max=_MOST_TOKENS)] = 64,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the engine.", show_default="one per physical core")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and answer together.", show_default="as it is served")
    ] = None,
    no_pack_cache: NoPackCache = False,
) -> None:
    """Run prompts through a model and record which experts their tokens go to.

    `isotherm serve` records the same from live traffic. Both add to one trace
    for each model, which holds counts and choices of experts, and no text.
    `isotherm profile show` draws it.

    Example: isotherm profile model.gguf --prompts chats.jsonl --tokens 128

    Example: isotherm profile show model.gguf --png routing.png
    """
    from ..assembly import demo_model
    from ..errors import EngineError
    from ..library.resolve import model_path
    from ..prompts import read_prompts
    from ..routing_profile import STREAMS, run_profile

    check_target("--out", to)
    with refusals():
        chosen = None if prompts is None else read_prompts(prompts)
        with progress_bars() as report:
            config = Config(
                model=model_path(model) if model else demo_model(report),
                threads=threads,
                context=context,
                max_running=STREAMS,
                pack_cache=not no_pack_cache,
            )
            if to is None:
                _check_kept(config)
            try:
                result = run_profile(config, chosen, tokens, report)
            except EngineError as error:
                fail(str(error), ExitCode.ENGINE)
    _keep(result, to)


@profile.command()
def show(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A trace, or the model whose trace is wanted; none is the trace that was recorded last.",
            metavar="TRACE|MODEL",
            show_default=False,
        ),
    ] = None,
    phase: Annotated[
        Literal["decode", "prefill"] | None,
        typer.Option(help="Which tokens the map is of.", show_default="decode, if there are any"),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Draw map and curves into a PNG file.", metavar="FILE", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which experts a model's tokens went to, and whether it would pay to keep the hottest on an accelerator.

    Example: isotherm profile show

    Example: isotherm profile show model.gguf --png routing.png
    """
    from ...placement.verdict import judge
    from .heat_map import default_phase, heat_map
    from .skew_tables import skew_json, skew_tables

    check_target("--png", png)
    trace = _trace_of(source)
    verdict, skew = judge(trace)
    shown = phase or default_phase(trace)
    if png is not None:
        from ..routing_plot import draw_routing

        try:
            draw_routing(png, trace, skew, verdict, shown)
        except OSError as error:
            fail(f"{readable(png)} cannot be written: {error.strerror or error}", ExitCode.FAILURE)
    if as_json:
        out.out(json.dumps(skew_json(trace, skew, verdict)), highlight=False)
        return
    out.print(heat_map(trace, shown, out), highlight=False)
    for part in skew_tables(skew, verdict):
        out.print(part, highlight=False)
    if png is not None:
        out.print(f"drawn in {readable(png)}", highlight=False, markup=False, soft_wrap=True)


def _check_kept(config: Config) -> None:
    """Refuse to add to a trace that cannot be read, before the work is done."""
    from ...placement.trace_file import load_trace
    from ..paths import routing_file
    from ..routing_profile import open_routed

    assert config.model is not None
    fingerprint = open_routed(config.model).checkpoint.fingerprint
    path = routing_file(fingerprint)
    if path.exists():
        load_trace(path, fingerprint)


def _keep(result: "Profile", to: Path | None) -> None:
    from ...placement.trace_file import merge_into, save_trace
    from ..paths import routing_file

    path = to or routing_file(result.trace.fingerprint)
    try:
        with refusals():
            if to is None:
                merge_into(path, result.trace)
            else:
                save_trace(path, result.trace)
    except OSError as error:
        remedy = "name another file by --out" if to else "name a file by --out, or set XDG_STATE_HOME to another folder"
        fail(f"{readable(path)} cannot be written: {error.strerror or error}; {remedy}", ExitCode.FAILURE)
    done = f"{result.prompts} prompts: {result.prompt_tokens} tokens of them and {result.generated_tokens} generated"
    out.print(f"{done}, recorded in", markup=False, highlight=False, soft_wrap=True)
    out.print(readable(path), markup=False, highlight=False, soft_wrap=True)


def _trace_of(source: Path | None) -> "RoutingTrace":
    from ...placement.trace_file import load_trace
    from ..paths import routing_file

    with refusals():
        if source is None:
            path, fingerprint = _newest(), None
        elif os.path.isfile(source) and source.suffix not in (".gguf", ".safetensors"):
            path, fingerprint = source, None
        else:
            from ..routing_profile import open_routed

            fingerprint = open_routed(source).checkpoint.fingerprint
            path = routing_file(fingerprint)
            if not path.exists():
                fail(
                    f"no routing of {readable(source)} was recorded yet; serve it for a while, or run: "
                    f"isotherm profile {readable(source)}",
                    ExitCode.FAILURE,
                )
        return load_trace(path, fingerprint)


def _newest() -> Path:
    from ..paths import routing_folder

    traces = sorted(routing_folder().glob("*.npz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        fail("no routing was recorded yet; serve a model for a while, or run: isotherm profile", ExitCode.FAILURE)
    return traces[-1]
