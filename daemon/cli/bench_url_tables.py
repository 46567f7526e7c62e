"""What `isotherm bench --url` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from ..traffic.figures import Figures, Percentiles
    from ..traffic.workload import Workload

_FEW = 100  # of fewer values the slowest is their p99
_LATENCIES = (
    ("first token", "ttft_s"),
    ("each token after", "tpot_s"),
    ("between pieces", "itl_s"),
    ("whole answer", "e2e_s"),
)


def workload_line(address: str, workload: "Workload") -> str:
    """What was asked of whom."""
    around = f", give or take {workload.spread:.0%}" if workload.spread else ""
    asked = (
        f"{len(workload.prompts)} prompts by turns"
        if workload.prompts
        else f"prompts of {workload.prompt} tokens{around}, {workload.shared_prefix} of them the same in all"
    )
    to = "held to a JSON schema, at most" if workload.structured else "of" if workload.ignore_eos else "of at most"
    return f"{workload.model} at {address}: {asked}; answers {to} {workload.gen} tokens{around}; seed {workload.seed}"


def load_table(rows: "Sequence[Figures]") -> Table:
    """A row for each point: how much was asked, and how much came."""
    table = Table("load", box=None, pad_edge=False)
    optional = [
        ("cached", any(row.cached_share is not None for row in rows)),
        ("valid", any(row.valid_share is not None for row in rows)),
        ("in the limits", any(row.good_share is not None for row in rows)),
        ("good/s", any(row.good_s is not None for row in rows)),
    ]
    shown = [name for name, is_there in optional if is_there]
    names = ("answers", "failed", "open", "requests/s", "tokens/s out", "tokens/s in", "prompt", "answer", *shown)
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        extra = {
            "cached": _share(row.cached_share),
            "valid": _share(row.valid_share),
            "in the limits": _share(row.good_share),
            "good/s": _number(row.good_s, 2),
        }
        table.add_row(
            _load(row),
            str(row.requests),
            str(sum(row.failures.values())),
            f"{row.in_flight:.1f}",
            f"{row.requests_s:.2f}",
            _number(row.output_tok_s, 1),
            _number(row.prompt_tok_s, 1),
            _median(row.prompt_tokens),
            _median(row.output_tokens),
            *(extra[name] for name in shown),
        )
    return table


def latency_table(rows: "Sequence[Figures]") -> Table:
    """A row for each latency of each point, in milliseconds."""
    table = Table("load", "ms", box=None, pad_edge=False)
    for name in ("p50", "p95", "p99", "values"):
        table.add_column(name, justify="right")
    for row in rows:
        label = _load(row)
        for name, which in _LATENCIES:
            found: Percentiles | None = getattr(row, which)
            values = (found.p50, found.p95, found.p99) if found else (None, None, None)
            count = found.count if found else 0
            table.add_row(label, name, *(_number(v and 1e3 * v, 1) for v in values), str(count))
            label = ""
    return table


def answer_notes(rows: "Sequence[Figures]", *, sized: bool) -> list[str]:
    """What a reader must know beside the figures."""
    notes = []
    if any(0 < row.requests < _FEW for row in rows):
        notes.append(f"of fewer than {_FEW} values p99 is the slowest one")
    if not sized:
        notes.append("the server counts no tokens of prompts, so a word was taken for one")
    for row in rows:
        if row.without_usage:
            notes.append(f"{_load(row)}: {row.without_usage} answers came without usage, so their tokens are not known")
        if row.tokens_per_piece is not None and row.tokens_per_piece >= 1.05:
            notes.append(f"{_load(row)}: a piece of an answer holds {row.tokens_per_piece:.2f} tokens")
        for what, count in row.failures.items():
            told = f" ({row.details[what]})" if row.details[what] else ""
            notes.append(f"{_load(row)}: {count} failed: {what}{told}")
        if row.cut_off:
            notes.append(f"{_load(row)}: {row.cut_off} were open when it was stopped, and do not count")
    return notes


def _load(row: "Figures") -> str:
    if row.rate is not None:
        return f"{row.rate:g} a second"
    return "1 stream" if row.streams == 1 else f"{row.streams} streams"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _median(found: "Percentiles | None") -> str:
    return "-" if found is None else f"{found.p50:.0f}"
