"""The picture of how latencies are distributed at each point."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from ...placement.files import replacing
from .figures import latencies
from .load import Point, name_of

_PANELS = (
    ("ttft", "time to first token"),
    ("tpot", "time per token after it (TPOT)"),
    ("itl", "between pieces of an answer (ITL)"),
    ("e2e", "whole answer"),
)
_DPI, _FEW, _TITLE, _PERCENTS = 120, 50, 100, (50, 95, 99)


def draw_latencies(path: Path, points: Sequence[Point], title: str) -> None:
    """Write a PNG: a panel for each latency, a curve for each point. Raises OSError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    values = [(name_of(point), latencies(point)) for point in points]
    for axes, (kind, words) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        for name, found in values:
            if found[kind]:
                times = 1e3 * np.sort(found[kind])
                share = 100 * np.arange(1, len(times) + 1) / len(times)
                axes.step(times, share, where="post", marker="." if len(times) < _FEW else "", label=name)
        for percent in _PERCENTS:
            axes.axhline(percent, linestyle=":", linewidth=0.8, color="#808080")
        axes.set_title(words)
        axes.set_xlabel("ms")
        axes.set_ylabel(f"% of {'pauses' if kind == 'itl' else 'requests'}")
        axes.set_ylim(0, 101)
        axes.grid(alpha=0.3)
        if any(found[kind] for _, found in values):
            if any(time > 0 for _, found in values for time in found[kind]):
                axes.set_xscale("log")
                axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.legend(loc="best", fontsize=9)
    figure.suptitle(fill(f"{title} (dotted: p50, p95, p99)", _TITLE), fontweight="bold")
    with replacing(path) as file:
        figure.savefig(file, dpi=_DPI, format="png")
