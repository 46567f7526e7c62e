"""`isotherm bench`: measure a model, a synthetic layer or the kernels on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from ...cpu_kernels.seating import Affinity
from ..config import Config
from .bench_tables import curve_table, kernel_table, model_table, moe_table
from .model_options import KvKind, NoPackCache, kv_kind
from .output import ExitCode, fail, out, refusals
from .progress import progress_bars
from .target import check_target
from .values import numbers

if TYPE_CHECKING:
    from ...experts.random_weights import MoeShape
    from ..bench import BenchOptions

_AUTO = "auto"
_DEFAULT = Config()
_MOST_STREAMS, _MOST_THREADS, _MOST_TOKENS, _MOST_WIDTH = 512, 1024, 65536, 1 << 20
_MODES = {  # the parameters that belong to one thing to measure
    **dict.fromkeys(
        ("model", "affinity", "prompt", "gen", "streams", "rounds", "context", "kv_cache", "no_pack_cache", "trace"),
        "a model",
    ),
    **dict.fromkeys(("moe", "weight_format", "tokens"), "--moe"),
    "kernels": "--kernels",
}
Context = Annotated[
    int,
    typer.Option(help="Tokens in the context before decoding.", min=0, show_default="none, with --streams 128 each"),
]
Threads = Annotated[
    str | None,
    typer.Option(
        help="CPU threads of the engine; auto measures which number decodes fastest.",
        show_default="one per physical core",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        help="Write where the tokens were routed, for `isotherm plan --trace`.", metavar="FILE", show_default=False
    ),
]
Moe = Annotated[
    str | None,
    typer.Option(
        help="Measure one MoE layer of random weights instead: EXPERTSxACTIVExHIDDENxINTERMEDIATE.",
        show_default=False,
    ),
]


def bench(
    ctx: typer.Context,
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A .gguf file or a safetensors folder; none is the embedded demo model.", show_default=False
        ),
    ] = None,
    threads: Threads = None,
    affinity: Annotated[
        str, typer.Option(help="What threads are bound to, as for `isotherm serve`.", metavar="none|cores")
    ] = "none",
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt that prefill is measured with.", min=1)] = 512,
    gen: Annotated[int, typer.Option(help="Tokens to generate.", min=1)] = 64,
    streams: Annotated[
        str, typer.Option(help="How many streams to decode at the same time, one measurement each.")
    ] = "1,4,8",
    rounds: Annotated[int, typer.Option(help="How often to measure all; medians count.", min=1)] = 3,
    context: Context = 0,
    kv_cache: KvKind = _DEFAULT.kv_cache,
    no_pack_cache: NoPackCache = False,
    trace: Trace = None,
    moe: Moe = None,
    weight_format: Annotated[str, typer.Option("--format", help="The format of the weights of --moe.")] = "q4_0",
    tokens: Annotated[str, typer.Option(help="Tokens in a step of --moe, one measurement each.")] = "1,16,64,256,1024",
    kernels: Annotated[bool, typer.Option("--kernels", help="Measure the products of the kernels instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure prefill and decode of a model, beside the machine's plain read bandwidth.

    Example: isotherm bench model.gguf --threads auto --streams 1,4,8 --json

    Example: isotherm bench --moe 128x8x2048x768 --format q4_0 --threads 1 --tokens 1,16,64
    """
    mode = "--kernels" if kernels else "a model" if moe is None else "--moe"
    _check_together(ctx, mode)
    if moe is not None:
        _bench_moe(moe, weight_format, _threads(threads), tokens, as_json)
    elif kernels:
        _bench_kernels(_threads(threads), as_json)
    else:
        from ..bench import BenchOptions

        options = BenchOptions(
            threads=None if threads == _AUTO else _threads(threads),
            affinity=_affinity(affinity),
            prompt=prompt,
            gen=gen,
            streams=numbers("--streams", streams, _MOST_STREAMS),
            rounds=rounds,
            context=context,
            kv_cache=kv_kind(kv_cache),
            pack_cache=not no_pack_cache,
            trace=trace,
        )
        _bench_model(model, options, as_json)


def _check_together(ctx: typer.Context, mode: str) -> None:
    """Refuse what would be passed over in this mode."""
    for parameter in ctx.command.params:
        name = str(parameter.name)
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and _MODES.get(name, mode) != mode:
            shown = "a model" if name == "model" else parameter.opts[0]
            fail(f"{shown} does not go with {mode}; measure one thing at a time", ExitCode.USAGE)


def _bench_model(model: Path | None, options: "BenchOptions", as_json: bool) -> None:
    from ..assembly import demo_model
    from ..bench import measure

    check_target("--trace", options.trace)
    with refusals(), progress_bars() as report:
        result = measure(model or demo_model(report), options, report)
    if as_json:
        shown = asdict(result)
        if options.threads is not None:
            del shown["thread_curve"]
        _print_json(shown)
        return
    if result.thread_curve:
        out.print(curve_table(result.thread_curve, result.threads, ascii_only=out.options.ascii_only), highlight=False)
    out.print(model_table(result, options.prompt), highlight=False)


def _bench_moe(shape: str, weight_format: str, threads: int, tokens: str, as_json: bool) -> None:
    from ...experts.formats import FORMATS
    from ..bench_moe import MoeOptions, measure_moe

    sizes, counts = _shape(shape), numbers("--tokens", tokens, _MOST_TOKENS)
    if weight_format.upper() not in FORMATS:
        known = ", ".join(name.lower() for name in FORMATS)
        fail(f"--format is {weight_format!r}; choose from {known}", ExitCode.USAGE)
    options = MoeOptions(shape=sizes, format=weight_format.upper(), threads=threads, tokens=counts)
    with refusals(), progress_bars() as report:
        rows = measure_moe(options, report)
    if as_json:
        _print_json([asdict(row) for row in rows])
    else:
        out.print(moe_table(rows), highlight=False)


def _bench_kernels(threads: int, as_json: bool) -> None:
    from ..bench_kernels import measure_kernels

    with refusals(), progress_bars() as report:
        table = measure_kernels(threads, report)
    if as_json:
        _print_json(asdict(table))
    else:
        out.print(kernel_table(table), highlight=False)


def _print_json(value: Any) -> None:
    out.out(json.dumps(value), highlight=False)


def _threads(text: str | None) -> int:
    from ..machine import default_threads

    if text is None:
        return default_threads()
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_THREADS:
        fail(f"--threads is {text!r}; name a number from 1 to {_MOST_THREADS}, or auto for a model", ExitCode.USAGE)
    return int(text)


def _affinity(text: str) -> Affinity:
    if text not in get_args(Affinity):
        fail(f"--affinity is {text!r}; it must be one of {', '.join(get_args(Affinity))}", ExitCode.USAGE)
    return cast(Affinity, text)


def _shape(text: str) -> "MoeShape":
    from ...experts.random_weights import MoeShape

    parts = text.lower().split("x")
    if len(parts) != 4 or not all(part.isdecimal() and 1 <= int(part) <= _MOST_WIDTH for part in parts):
        fail(
            f"--moe is {text!r}; name experts x active x hidden x intermediate, each from 1 to {_MOST_WIDTH}, such as "
            "128x8x2048x768",
            ExitCode.USAGE,
        )
    return MoeShape(*(int(part) for part in parts))
