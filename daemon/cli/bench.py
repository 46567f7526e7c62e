"""`isotherm bench`: measure a model on this machine."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .output import ExitCode, fail, out, refusals
from .progress import progress_bars

if TYPE_CHECKING:
    from ..bench import BenchResult


def bench(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A .gguf file or a safetensors folder; none is the embedded demo model.", show_default=False
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads of the engine.", min=1, show_default="one per physical core")
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of the prompt that prefill is measured with.", min=1)] = 512,
    gen: Annotated[int, typer.Option(help="Tokens to generate.", min=1)] = 64,
    streams: Annotated[
        str, typer.Option(help="How many streams to decode at the same time, one measurement each.")
    ] = "1,4,8",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure prefill and decode of a model, beside the machine's plain read bandwidth.

    Example: isotherm bench model.gguf --threads 8 --streams 1,4,8 --json
    """
    counts = _counts(streams)
    from ..assembly import default_threads, demo_model
    from ..bench import BenchOptions, measure

    options = BenchOptions(threads=threads or default_threads(), prompt=prompt, gen=gen, streams=counts)
    with refusals(), progress_bars() as report:
        result = measure(model or demo_model(report), options, report)
    if as_json:
        out.out(json.dumps(asdict(result)), highlight=False)
    else:
        out.print(_table(result, options.prompt), highlight=False)


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= 512 for count in counts):
        fail(f"--streams is {text!r}; name numbers from 1 to 512 with commas, such as 1,4,8", ExitCode.USAGE)
    return counts


def _table(result: "BenchResult", prompt: int) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("load", f"{result.load_s:.1f}", "s")
    table.add_row("first token of the first prompt", f"{result.first_token_s:.2f}", "s")
    table.add_row(f"prefill of {prompt}", f"{result.prefill_tok_s:.1f}", "tokens/s")
    table.add_row("decode, one stream", f"{result.decode_tok_s:.1f}", "tokens/s")
    for count, rates in result.streams.items():
        table.add_row(f"{count} streams: prefill", f"{rates['prefill_tok_s']:.1f}", "tokens/s in all")
        table.add_row(f"{count} streams: decode", f"{rates['decode_tok_s']:.1f}", "tokens/s in all")
    table.add_row(f"plain reads, {result.threads} threads", f"{result.read_gb_s:.1f}", "GB/s")
    table.add_row("decode, one stream, reads", f"{result.decode_gb_s:.1f}", "GB/s")
    table.add_row("share of the memory wall", f"{result.memory_wall_share:.0%}", "")
    return table
