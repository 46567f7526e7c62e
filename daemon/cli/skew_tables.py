"""What `isotherm profile show` says of skew."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ...placement.skew import SkewReport
    from ...placement.trace import RoutingTrace

_SLOTS = (0.1, 0.25, 0.5, 0.75)  # of a layer's experts


def skew_tables(report: "SkewReport") -> Iterator[Table | Text]:
    """Coverage by pinned experts, hits of a cache, and the verdict; the tables only where there was enough traffic."""
    if report.coverage:
        yield Text("\nShare of choices that the hottest experts take")
        yield _coverage(report)
    if report.lru_by_layer.size:
        yield Text("\nHits of a cache of the experts used last, in each layer")
        yield _caches(report)
    yield Text(f"\n{report.verdict.text}")


def _coverage(report: "SkewReport") -> Table:
    table = _table("experts kept", "of this traffic", "of other traffic", "if all were alike", "if nothing lasted")
    for row in report.coverage:
        table.add_row(
            f"{row.fraction:.0%} ({row.experts})",
            f"{row.same:.0%}",
            f"{row.held_out:.0%} ±{row.spread:.1%}",
            f"{row.uniform:.0%}",
            f"{row.shuffled:.0%} ±{row.shuffled_spread:.1%}",
        )
    return table


def _caches(report: "SkewReport") -> Table:
    table = _table("slots a layer", "hits", "worst layer", "best layer", "tokens in random order", "one cache for all")
    experts = report.lru_by_layer.shape[1] - 1
    for slots in sorted({max(1, round(share * experts)) for share in _SLOTS}):
        hits = report.lru_by_layer[:, slots]
        one = report.lru_global[slots * len(hits)]
        cells = (hits.mean(), hits.min(), hits.max(), report.lru_shuffled[slots], one)
        table.add_row(f"{slots} of {experts}", *(f"{cell:.0%}" for cell in cells))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    return table


def skew_json(trace: "RoutingTrace", report: "SkewReport") -> dict[str, Any]:
    """All of it as plain values: counts [layers][experts] of each phase, and the report."""
    return {
        "fingerprint": trace.fingerprint,
        "layers": list(trace.layers),
        "num_experts": trace.num_experts,
        "top_k": trace.top_k,
        "phases": {name: _plain(phase) for name, phase in trace.phases.items()},
        "skew": _plain(report),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value
