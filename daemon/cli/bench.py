"""`isotherm bench`: measure a model, a synthetic layer or the kernels on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from ...cpu_kernels.seating import Affinity
from ..config import Config
from .bench_options import (
    MOST_STREAMS,
    MOST_THREADS,
    MOST_TOKENS,
    MOST_WIDTH,
    Bound,
    Context,
    Duration,
    Format,
    Gen,
    IgnoreEos,
    Kernels,
    KeyFile,
    Model,
    Moe,
    Plot,
    Prompt,
    Prompts,
    Rate,
    Requests,
    Rounds,
    Seed,
    ServedModel,
    SharedPrefix,
    Spread,
    Streams,
    Structured,
    Threads,
    Timeout,
    Tokens,
    TpotLimit,
    Trace,
    TtftLimit,
    Url,
    WarmUp,
    check_together,
)  # fmt: skip
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


def bench(
    ctx: typer.Context,
    model: Model = None,
    threads: Threads = None,
    affinity: Bound = "none",
    prompt: Prompt = 512,
    gen: Gen = 64,
    streams: Streams = "1,4,8",
    rounds: Rounds = 3,
    context: Context = 0,
    kv_cache: KvKind = _DEFAULT.kv_cache,
    no_pack_cache: NoPackCache = False,
    trace: Trace = None,
    moe: Moe = None,
    weight_format: Format = "q4_0",
    tokens: Tokens = "1,16,64,256,1024",
    kernels: Kernels = False,
    url: Url = None,
    served_model: ServedModel = None,
    rate: Rate = None,
    requests: Requests = None,
    duration: Duration = None,
    warm_up: WarmUp = 2,
    spread: Spread = 0.0,
    shared_prefix: SharedPrefix = 0,
    prompts: Prompts = None,
    structured: Structured = False,
    ignore_eos: IgnoreEos = True,
    seed: Seed = 1,
    timeout: Timeout = 600.0,
    ttft_limit: TtftLimit = None,
    tpot_limit: TpotLimit = None,
    api_key_file: KeyFile = None,
    plot: Plot = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure prefill and decode of a model, beside the machine's plain read bandwidth; or any server, by --url.

    Example: isotherm bench model.gguf --threads auto --streams 1,4,8 --json

    Example: isotherm bench --moe 128x8x2048x768 --format q4_0 --threads 1 --tokens 1,16,64

    Example: isotherm bench --url 127.0.0.1:8440 --prompt 1024 --gen 128 --streams 1,4,8 --plot latency.png
    """
    mode = "--url" if url is not None else "--kernels" if kernels else "a model" if moe is None else "--moe"
    check_together(ctx, mode)
    if url is not None:
        from .bench_url import bench_url, make_limits, make_load, make_workload

        asked = make_workload(ctx, prompt, gen, spread, shared_prefix, prompts, structured, ignore_eos, seed)
        load = make_load(ctx, asked, streams, rate, requests, duration, warm_up, timeout)
        bench_url(url, served_model, api_key_file, load, make_limits(ttft_limit, tpot_limit), plot, as_json)
    elif moe is not None:
        _bench_moe(moe, weight_format, _threads(threads), tokens, as_json)
    elif kernels:
        _bench_kernels(_threads(threads), as_json)
    else:
        options = _options(threads, affinity, prompt, gen, streams, rounds, context, kv_cache, no_pack_cache, trace)
        _bench_model(model, options, as_json)


def _options(
    threads: str | None,
    affinity: str,
    prompt: int,
    gen: int,
    streams: str,
    rounds: int,
    context: int,
    kv_cache: str,
    no_pack_cache: bool,
    trace: Path | None,
) -> "BenchOptions":
    from ..bench import BenchOptions

    return BenchOptions(
        threads=None if threads == _AUTO else _threads(threads),
        affinity=_affinity(affinity),
        prompt=prompt,
        gen=gen,
        streams=numbers("--streams", streams, MOST_STREAMS),
        rounds=rounds,
        context=context,
        kv_cache=kv_kind(kv_cache),
        pack_cache=not no_pack_cache,
        trace=trace,
    )


def _bench_model(model: Path | None, options: "BenchOptions", as_json: bool) -> None:
    from ..assembly import demo_model
    from ..bench import measure
    from ..library.resolve import model_path

    check_target("--trace", options.trace)
    with refusals(), progress_bars() as report:
        result = measure(model_path(model) if model else demo_model(report), options, report)
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

    sizes, counts = _shape(shape), numbers("--tokens", tokens, MOST_TOKENS)
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
    if not text.isdecimal() or not 1 <= int(text) <= MOST_THREADS:
        fail(f"--threads is {text!r}; name a number from 1 to {MOST_THREADS}, or auto for a model", ExitCode.USAGE)
    return int(text)


def _affinity(text: str) -> Affinity:
    if text not in get_args(Affinity):
        fail(f"--affinity is {text!r}; it must be one of {', '.join(get_args(Affinity))}", ExitCode.USAGE)
    return cast(Affinity, text)


def _shape(text: str) -> "MoeShape":
    from ...experts.random_weights import MoeShape

    parts = text.lower().split("x")
    if len(parts) != 4 or not all(part.isdecimal() and 1 <= int(part) <= MOST_WIDTH for part in parts):
        fail(
            f"--moe is {text!r}; name experts x active x hidden x intermediate, each from 1 to {MOST_WIDTH}, such as "
            "128x8x2048x768",
            ExitCode.USAGE,
        )
    return MoeShape(*(int(part) for part in parts))
