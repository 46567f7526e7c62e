"""What `isotherm profile show` says of skew."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from .output import plus_minus

if TYPE_CHECKING:
    from ...placement.skew import Skew
    from ...placement.trace import RoutingTrace
    from ...placement.verdict import Verdict

_SLOTS = (0.1, 0.25, 0.5, 0.75)  # of a layer's experts


def skew_tables(skew: "Skew | None", verdict: "Verdict") -> Iterator[Table | Text]:
    """Coverage by pinned experts, hits of a cache, and the verdict; the tables only where there was enough traffic."""
    if skew is not None:
        sample = f"{skew.tokens:,} decoded tokens of {skew.sequences:,} sequences"
        yield Text(f"\nShare of choices that the hottest experts take, {sample}")
        yield _coverage(skew)
        yield Text("\nShare of choices that a cache of each layer's most recently used experts has")
        yield _caches(skew)
    yield Text(f"\n{verdict.text[:1].upper()}{verdict.text[1:]}")


def _coverage(skew: "Skew") -> Table:
    table = _table("experts kept", "this traffic", "other traffic", "if all were alike", "if nothing carried over")
    for row in skew.coverage:
        table.add_row(
            f"{row.fraction:.0%} ({row.experts})",
            f"{row.same:.0%}",
            f"{row.held_out:.0%} {plus_minus()}{row.spread:.1%}",
            f"{row.uniform:.0%}",
            f"{row.shuffled:.0%} {plus_minus()}{row.shuffled_spread:.1%}",
        )
    return table


def _caches(skew: "Skew") -> Table:
    table = _table("slots a layer", "share", "worst layer", "best layer", "tokens in random order", "one cache for all")
    layers, experts = len(skew.lru_by_layer), skew.lru_by_layer.shape[1] - 1
    for slots in sorted({max(1, round(share * experts)) for share in _SLOTS}):
        hits = skew.lru_by_layer[:, slots]
        random, together = skew.lru_shuffled[:, slots].mean(), skew.lru_global[slots * layers]
        cells = (hits.mean(), hits.min(), hits.max(), random, together)
        table.add_row(f"{slots} of {experts}", *(f"{cell:.0%}" for cell in cells))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right")
    return table


def skew_json(trace: "RoutingTrace", skew: "Skew | None", verdict: "Verdict") -> dict[str, Any]:
    """All of it as plain values: counts [layers][experts] of each phase, skew (null where there is too little traffic)
    and the verdict."""
    return {
        "fingerprint": trace.fingerprint,
        "layers": list(trace.layers),
        "num_experts": trace.num_experts,
        "top_k": trace.top_k,
        "phases": {name: _plain(phase) for name, phase in trace.phases.items()},
        "skew": _plain(skew),
        "verdict": _plain(verdict),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
