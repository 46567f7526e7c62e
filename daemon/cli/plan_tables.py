"""The tables that `isotherm plan` prints."""

from collections.abc import Iterator
from itertools import groupby

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...placement.plan import Plan, Rate
from ...placement.plan_diff import Change, Difference
from ...placement.plan_file import ranges

GIB = 2**30
_BAR = 24  # characters of the longest bar


def plan_tables(plan: Plan, *, ascii_only: bool) -> Iterator[RenderableType]:
    """What a plan predicts, its ledger, what accelerators are worth, and why."""
    yield _predictions(plan)
    yield Text()
    yield _ledger(plan)
    if any(plan.value_ms_by_gib.values()):
        yield Text()
        yield _worth(plan, "#" if ascii_only else "█")
    if len(plan.considered) > 1:
        yield Text()
        yield _policies(plan)
    yield Text("\nWhy")
    for reason in plan.reasons:
        yield Padding(Text(reason), (0, 0, 0, 2))


def diff_tables(found: Difference) -> Iterator[RenderableType]:
    """What moves between two plans, and what that changes."""
    if found.nothing:
        yield Text("The plans are alike.")
    if found.asked:
        yield _changes("asked for", found.asked)
    if found.moves:
        table = Table("moves", box=None, pad_edge=False)
        for name in ("how many", "from", "to", "layers"):
            table.add_column(name)
        for move in found.moves:
            table.add_row(move.what, str(move.count), move.before, move.after, ranges(move.layers))
        yield table
    if found.changes:
        yield _changes("changes", found.changes)


def _predictions(plan: Plan) -> Table:
    traffic = plan.traffic
    streams = "one stream" if traffic.streams == 1 else f"{traffic.streams} streams"
    decode, prefill = _rate(plan.predicted_decode_tok_s), _rate(plan.predicted_prefill_tok_s)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column()
    for name, text in (
        ("model", f"{plan.model}, up to {plan.context} tokens, KV cache in {plan.kv_kind}"),
        ("hardware", plan.hardware),
        ("routing trace", plan.trace),
        ("policy", plan.policy),
        ("decode", decode),
        ("", f"{streams} at {traffic.context} tokens, {plan.step_ms:.2f} ms a step"),
        ("prefill", f"{prefill}, a prompt of {traffic.prompt} tokens"),
    ):
        table.add_row(name, Text(text))
    return table


def _rate(rate: Rate) -> str:
    return f"{rate.value:.1f} tokens/s ({rate.low:.1f} to {rate.high:.1f})"


def _ledger(plan: Plan) -> Table:
    """Terms by device, in GiB."""
    table = Table("GiB", box=None, pad_edge=False)
    for account in plan.ledger:
        table.add_column(account.device, justify="right")
    names = dict.fromkeys(term.name for account in plan.ledger for term in account.terms)
    for name in names:
        table.add_row(name, *(_gib(account.of(name)) for account in plan.ledger))
    table.add_row("total", *(f"{account.total / GIB:.2f}" for account in plan.ledger))
    table.add_row("may be used", *(f"{account.budget / GIB:.2f}" for account in plan.ledger))
    table.add_row("left", *(f"{account.free / GIB:.2f}" for account in plan.ledger))
    return table


def _gib(size: int) -> str:
    if not size:
        return ""
    return f"{size / GIB:.2f}" if size >= 0.005 * GIB else "<0.01"


def _worth(plan: Plan, bar: str) -> Table:
    """What each GiB on an accelerator saves, and what the next would."""
    best = max((value for values in plan.value_ms_by_gib.values() for value in values), default=0.0)
    table = Table("worth", box=None, pad_edge=False)
    table.add_column("GiB", justify="right")
    table.add_column("ms a step", justify="right")
    table.add_column()
    for device, values in plan.value_ms_by_gib.items():
        rows = [*_runs(values), ("next", f"{plan.shadow_price_ms_per_gib.get(device, 0.0):.2f}")]
        for number, (which, value) in enumerate(rows):
            length = round(_BAR * max(float(value), 0.0) / best) if best > 0 else 0
            table.add_row("" if number else device, which, value, bar * length)
    return table


def _runs(values: tuple[float, ...]) -> Iterator[tuple[str, str]]:
    """Which GiB, and what each of them saves; those that save the same together."""
    first = 1
    for value, alike in groupby(f"{value:.2f}" for value in values):
        last = first + len(list(alike)) - 1
        yield str(first) if first == last else f"{first}-{last}", value
        first = last + 1


def _policies(plan: Plan) -> Table:
    table = Table("policy", box=None, pad_edge=False)
    table.add_column("ms a step", justify="right")
    table.add_column()
    for item in plan.considered:
        table.add_row(item.policy, "" if item.step_ms is None else f"{item.step_ms:.2f}", item.note)
    return table


def _changes(title: str, changes: tuple[Change, ...]) -> Table:
    table = Table(title, box=None, pad_edge=False)
    table.add_column("before")
    table.add_column("after")
    for change in changes:
        table.add_row(change.what, change.before, change.after)
    return table
