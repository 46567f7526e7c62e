"""The tables that `isotherm simulate` prints."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...placement.hit_rates import HitRate
from ..what_if import Row, Simulated

_AXES = (("hardware", "hardware"), ("threads", "threads"), ("format", "format"), ("context", "context"),
         ("streams", "streams"), ("vram_gib", "VRAM\nGiB"))  # fmt: skip


def simulated_tables(result: Simulated) -> Iterator[RenderableType]:
    """What all rows have in common, what they differ in, and whatever does not fit."""
    same, varied = _axes(result.rows)
    facts = [f"model {result.model}", f"routing trace: {result.trace}", *same]
    yield Text("; ".join(facts))
    yield Text()
    yield _table(result.rows, varied)
    notes = dict.fromkeys(row.note for row in result.rows if row.note)
    for note in notes:
        yield Text(f"\nDoes not fit: {note}")


def _axes(rows: Sequence[Row]) -> tuple[list[str], list[tuple[str, str]]]:
    """In words what is the same in all settings, and the names and titles of what is not."""
    same, varied = [], []
    for name, title in _AXES:
        values = {getattr(row.setting, name) for row in rows}
        if len(values) > 1:
            varied.append((name, title))
        elif (value := values.pop()) not in ("", 0.0):
            same.append(f"{' '.join(title.split())} {_shown(value)}")
    return same, varied


def _table(rows: Sequence[Row], varied: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, title in varied:
        table.add_column(title, justify="left" if name in ("hardware", "format") else "right")
    table.add_column("policy")
    for title in ("decode\ntokens/s", "low\nto high", "prefill\ntokens/s", "hits", "link\nMB/token", "CPU\nMB/token"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("misses", no_wrap=True)
    for setting in dict.fromkeys(row.setting for row in rows):
        own = [_shown(getattr(setting, name)) for name, _ in varied]
        for cells, policies in _alike([row for row in rows if row.setting == setting]):
            table.add_row(*own, policies, *cells)
            own = [""] * len(own)
    return table


def _alike(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], str]]:
    """The cells, and the names of the policies that share them."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        found.setdefault(_cells(row), []).append(row.policy)
    for cells, policies in found.items():
        yield cells, "all" if len(policies) == len(rows) > 1 else ", ".join(policies)


def _cells(row: Row) -> tuple[str, ...]:
    found = row.outcome
    if found is None:
        return ("does not fit",)
    moved = (f"{found.hit_rate:.1%}", f"{found.link_mb_per_token:.1f}", f"{found.ram_mb_per_token:.1f}")
    misses = "" if found.hit_rate == 1 else found.misses
    decode = (_rate(found.decode.value), f"{_rate(found.decode.low)} to {_rate(found.decode.high)}")
    return *decode, _rate(found.prefill.value), *moved, misses


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _shown(value: str | int | float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def hit_rate_table(rows: Sequence[HitRate]) -> Table:
    """A line for each share of the experts, a column for each policy."""
    table = Table("experts kept\nof each layer", box=None, pad_edge=False)
    several = len({row.streams for row in rows}) > 1
    names = list(dict.fromkeys((row.policy, row.streams) for row in rows))
    for policy, streams in names:
        table.add_column(f"{policy}\n{streams} streams" if several else policy, justify="right", no_wrap=True)
    found = {(row.slots, row.policy, row.streams): row for row in rows}
    for slots in dict.fromkeys(row.slots for row in rows):
        cells = [f"{found[slots, *name].hit_rate:.1%}" for name in names]
        table.add_row(f"{slots} ({found[slots, *names[0]].share:.0%})", *cells)
    return table
