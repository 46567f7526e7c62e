"""The picture that `isotherm simulate --png` draws: tokens a second over the memory of an accelerator, by policy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..placement.files import replacing
from ..placement.replay import CacheKind
from .what_if import Row, Setting, Simulated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 12
NAMES: Mapping[CacheKind, str] = MappingProxyType(
    {
        "static": "static: the hottest stay",
        "lru": "LRU: the last used stay",
        "lfu": "LFU: the most used stay",
        "lfru": "LFRU: used often and of late",
        "seeded": "seeded: hottest, and a few of late",
        "belady": "no cache can do better",
    }
)
COLOURS: Mapping[CacheKind, str] = MappingProxyType(
    {
        "static": "#b2182b",
        "lru": "#21489f",
        "lfu": "#d98c00",
        "lfru": "#2a8a57",
        "seeded": "#7a3b9e",
        "belady": "#808080",
    }
)
MARKS: Mapping[CacheKind, str] = MappingProxyType(
    {"static": "o", "lru": "s", "lfu": "^", "lfru": "D", "seeded": "v", "belady": ""}
)
DPI, _WIDTH, _HEIGHT, _LEGEND = 120, 6.0, 4.4, 1.0
Case = tuple[str, ...]


def panels(rows: Sequence[Row]) -> dict[Case, list[Row]]:
    """The rows by all of their setting that is no VRAM; each has a panel of its own."""
    found: dict[Case, list[Row]] = {}
    for row in rows:
        found.setdefault(_case(row.setting), []).append(row)
    return found


def draw_what_if(path: Path, result: Simulated) -> None:
    """Write a PNG. Raises OSError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = panels(result.rows)
    columns = min(math.isqrt(len(cases) - 1) + 1, 3)
    lines = -(-len(cases) // columns)
    width = max(columns * _WIDTH, 8.0)
    figure = Figure(figsize=(width, lines * _HEIGHT + _LEGEND), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    varied = [len(set(parts)) > 1 for parts in zip(*cases, strict=True)]
    for axes, (case, rows) in zip(grid, cases.items(), strict=False):
        _draw(axes, rows)
        shown = [part for part, differs in zip(case, varied, strict=True) if differs]
        axes.set_title(", ".join(shown) or ", ".join(part for part in case if part), fontsize=10)
    for axes in grid[len(cases) :]:
        axes.set_axis_off()
    handles = {label: line for axes in grid for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=10)
    figure.suptitle(f"{result.model}: decoding, by what accelerators may hold", fontsize=13, fontweight="bold")
    with replacing(path) as file:
        figure.savefig(file, dpi=DPI, format="png")


def _draw(axes: "Axes", rows: Sequence[Row]) -> None:
    """A line for each policy, and where measurements should lie around the first."""
    band = True
    for policy in dict.fromkeys(row.policy for row in rows):
        points = [(row.setting.vram_gib, row.outcome.decode) for row in rows if row.policy == policy and row.outcome]
        if not points:
            continue
        where, rates = [point[0] for point in points], [point[1] for point in points]
        axes.plot(
            where,
            [rate.value for rate in rates],
            "--" if policy == "belady" else "-",
            label=NAMES[policy],
            color=COLOURS[policy],
            marker=MARKS[policy],
            markersize=5,
            linewidth=2,
        )
        if band:
            low, high = [rate.low for rate in rates], [rate.high for rate in rates]
            label = f"nine in ten measurements, {policy}"
            axes.fill_between(where, low, high, color=COLOURS[policy], alpha=0.12, linewidth=0, label=label)
            band = False
    missing = sorted({row.setting.vram_gib for row in rows if row.outcome is None})
    for size in missing:
        axes.axvline(size, color="#808080", alpha=0.25, linewidth=8, label="does not fit")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GiB that may be used of each accelerator")
    axes.set_ylabel("tokens/s, all streams together")
    axes.grid(alpha=0.3)


def _case(setting: Setting) -> Case:
    streams = "1 stream" if setting.streams == 1 else f"{setting.streams} streams"
    threads = f"{setting.threads} threads"
    return setting.hardware, f"context {setting.context}", streams, setting.format.lower(), threads
