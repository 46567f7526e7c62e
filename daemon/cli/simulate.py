"""`isotherm simulate`: how fast a model would be on other machines, with other memory, traffic and policies."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..config import Config, readable
from .model_options import KvKind, Trace, kv_kind
from .output import ExitCode, fail, out, refusals, show
from .progress import progress_bars
from .simulate_options import (
    MOST_CONTEXT,
    MOST_STREAMS,
    MOST_THREADS,
    Context,
    Csv,
    Formats,
    Hardware,
    Json,
    OutDir,
    Png,
    Policies,
    Source,
    Streams,
    Threads,
    Vram,
    policies,
    size,
    targets,
)  # fmt: skip
from .values import numbers, one_of, parts, values_of

if TYPE_CHECKING:
    from ...placement.replay import CacheKind
    from ..what_if import Grid

_DEFAULT = Config()
_OF_A_MODEL = ("trace", "hardware", "vram", "context", "formats", "threads", "kv_cache")


def simulate(
    ctx: typer.Context,
    source: Source = None,
    trace: Trace = None,
    hardware: Hardware = None,
    vram: Vram = None,
    context: Context = None,
    streams: Streams = "1",
    formats: Formats = None,
    threads: Threads = None,
    policy: Policies = "static,lru,lfru,seeded",
    kv_cache: KvKind = _DEFAULT.kv_cache,
    out_dir: OutDir = None,
    csv: Csv = None,
    png: Png = None,
    json: Json = None,
) -> None:
    """Replay a trace and predict decode and prefill for every combination of the values that are named.

    What a policy learns, it learns on the first half of the trace; all are measured on the second. Without a trace
    every expert is as likely as any other, which is the worst case for all of them. No weight is read.

    Example: isotherm simulate model.gguf --hardware ddr5-desktop-rtx4090 --vram 6GiB,12GiB,24GiB --out-dir what-if

    Example: isotherm simulate model.gguf --trace work.npz --streams 1,8 --policy static,lru,belady

    Example: isotherm simulate work.npz --png hits.png
    """
    files = targets({"csv": csv, "png": png, "json": json}, out_dir)
    chosen, counts = policies(policy), numbers("--streams", streams, MOST_STREAMS)
    if source is not None and source.suffix == ".npz":
        _refuse_of_a_model(ctx)
        _simulate_trace(source, chosen, counts, files)
        return
    from ...experts.formats import FORMATS
    from ..what_if import Grid

    kind = kv_kind(kv_cache)
    with refusals(), progress_bars() as report:
        from ..assembly import demo_model

        grid = Grid(
            model=source or demo_model(report),
            trace=trace,
            hardware=values_of("--hardware", hardware, lambda text: text),
            vram=() if vram is None else tuple(size(part) for part in parts("--vram", vram)),
            context=(None,) if context is None else numbers("--context", context, MOST_CONTEXT),
            streams=counts,
            weight_format=values_of("--format", formats, lambda text: one_of("--format", text.upper(), tuple(FORMATS))),
            threads=(None,) if threads is None else numbers("--threads", threads, MOST_THREADS),
            policies=chosen,
            kv_cache=kind,
        )
    _simulate_model(grid, files)


def _simulate_model(grid: "Grid", files: Mapping[str, Path]) -> None:
    from ..what_if import simulate as run
    from ..what_if_files import write_csv, write_json
    from ..what_if_plot import MOST_PANELS, draw_what_if
    from .simulate_tables import simulated_tables

    if "png" in files and grid.panels > MOST_PANELS:
        fail(
            f"a picture holds {MOST_PANELS} settings beside VRAM, these are {grid.panels}; name fewer values, or leave "
            "out the picture",
            ExitCode.USAGE,
        )
    with refusals(), progress_bars() as report:
        result = run(grid, report)
    for part in simulated_tables(result):
        show(part)
    rows = [row.flat() for row in result.rows]
    _write(
        files,
        {
            "csv": lambda path: write_csv(path, rows),
            "png": lambda path: draw_what_if(path, result),
            "json": lambda path: write_json(path, {"model": result.model, "trace": result.trace}, rows),
        },
    )


def _simulate_trace(
    path: Path, policies: Sequence["CacheKind"], streams: Sequence[int], files: Mapping[str, Path]
) -> None:
    from dataclasses import asdict

    from ...placement.hit_rates import HitRate, hit_rates
    from ...placement.trace_file import load_trace
    from ..hit_rate_plot import draw_hit_rates
    from ..what_if_files import write_csv, write_json
    from .simulate_tables import hit_rate_table

    found: list[HitRate] = []
    with refusals(), progress_bars() as report:
        trace = load_trace(path)
        for number, count in enumerate(streams):
            report("replaying", number, len(streams))
            try:
                found += hit_rates(trace, policies, count)
            except ValueError as error:
                fail(f"{readable(path)}: {error}", ExitCode.USAGE)
    show(hit_rate_table(found))
    rows = [asdict(row) for row in found]
    _write(
        files,
        {
            "csv": lambda to: write_csv(to, rows),
            "png": lambda to: draw_hit_rates(to, found),
            "json": lambda to: write_json(to, {"trace": readable(path)}, rows),
        },
    )


def _write(files: Mapping[str, Path], writers: Mapping[str, Callable[[Path], None]]) -> None:
    for kind, path in files.items():
        try:
            writers[kind](path)
        except OSError as error:
            fail(f"{readable(path)} cannot be written: {error.strerror or error}", ExitCode.FAILURE)
        out.print(f"Written to {readable(path)}.", highlight=False, markup=False, soft_wrap=True)


def _refuse_of_a_model(ctx: typer.Context) -> None:
    """A trace alone has no sizes, so what needs them would be passed over."""
    for parameter in ctx.command.params:
        name = str(parameter.name)
        source = ctx.get_parameter_source(name)
        if name in _OF_A_MODEL and source is not None and source.name == "COMMANDLINE":
            fail(f"{parameter.opts[0]} needs a model: isotherm simulate MODEL --trace FILE", ExitCode.USAGE)
