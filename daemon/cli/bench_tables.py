"""The tables that `isotherm bench` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from ..bench_runs import LIKE

if TYPE_CHECKING:
    from ..bench import BenchResult
    from ..bench_kernels import KernelTable
    from ..bench_moe import MoeRow
    from ..bench_threads import ThreadPoint

_BAR = 24  # characters of the longest bar


def model_table(result: "BenchResult", prompt: int) -> Table:
    """Rates of a model, whose prefill had `prompt` tokens."""
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
    table.caption, table.caption_justify = _counting(result), "left"
    return table


def _counting(result: "BenchResult") -> str:
    """Which runs the medians are of."""
    whose = "when it was calibrated" if result.calibrated else "in most of them"
    usual = f"memory read at {result.usual_gb_s:.1f} GB/s, as {whose}, give or take {LIKE:.0%}"
    uncounted = [work for work, number in result.counted.items() if not number]
    text = f"medians of {sum(result.counted.values())} of {len(result.runs)} runs, in which {usual}"
    if uncounted:
        text += f"; of all runs for {', '.join(uncounted)}"
        if result.calibrated:
            text += "; if it always reads at another speed, measure anew: isotherm calibrate"
    return text


def curve_table(curve: Sequence["ThreadPoint"], chosen: int, *, ascii_only: bool) -> Table:
    """Decode rate and read bandwidth by the number of threads, with a bar for the rate."""
    best = max(point.decode_tok_s for point in curve)
    several = any(point.nodes > 1 for point in curve)
    table = Table("", box=None, pad_edge=False)
    for name in ("threads", *(["memory nodes"] if several else []), "tokens/s", "reads GB/s"):
        table.add_column(name, justify="right")
    table.add_column()
    for point in curve:
        marks = ["chosen"] if point.threads == chosen else []
        marks += [] if point.physical else ["more than cores"]
        bar = ("#" if ascii_only else "█") * round(_BAR * point.decode_tok_s / best)
        rates = (f"{point.decode_tok_s:.1f}", f"{point.read_gb_s:.1f}")
        nodes = [str(point.nodes)] if several else []
        table.add_row(", ".join(marks), str(point.threads), *nodes, *rates, bar)
    return table


def moe_table(rows: Sequence["MoeRow"]) -> Table:
    """One MoE layer by the number of tokens."""
    table = Table(box=None, pad_edge=False)
    for name in ("tokens", "us a layer", "GOPS", "error", "of the products"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.tokens), f"{row.us:.1f}", f"{row.gops:.1f}", f"{row.error:.2%}", f"{row.product_error:.2%}"
        )
    return table


def kernel_table(result: "KernelTable") -> Table:
    """Every case; the caption says which formats a kind holds."""
    kinds = {row.kind: row.formats for row in result.cases}
    held = [f"{kind}: {' '.join(formats)}" for kind, formats in kinds.items()]
    reads = f"plain reads, {result.threads} threads: {result.read_gb_s:.1f} GB/s"
    table = Table("kind", box=None, pad_edge=False, caption="\n".join((*held, reads)), caption_justify="left")
    for name in ("rows", "columns", "tokens", "us", "GB/s", "GOPS", "of plain reads"):
        table.add_column(name, justify="right")
    for row in result.cases:
        share = "" if row.read_share is None else f"{row.read_share:.0%}"
        sizes = (str(row.rows), str(row.columns), str(row.tokens))
        table.add_row(row.kind, *sizes, f"{row.us:.1f}", f"{row.gb_s:.1f}", f"{row.gops:.0f}", share)
    return table
