"""The picture that `isotherm profile show --png` draws: the heat map, and what pinning and caching would reach."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..placement.heat import fair_shares
from ..placement.skew import SkewReport
from ..placement.trace import Phase, RoutingTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_DPI = 130
_COLDEST, _HOTTEST = 0.25, 4.0  # times the fair share
_SOLID, _OTHER, _NULL = "#b2182b", "#21489f", "#808080"


def draw_routing(path: Path, trace: RoutingTrace, report: SkewReport, phase: Phase) -> None:
    """Write a PNG. Raises OSError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 8), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    _draw_map(left, trace, phase)
    upper, lower = right.subplots(2, 1)
    _draw_coverage(upper, report)
    _draw_caches(lower, report)
    figure.suptitle(textwrap.fill(report.verdict.text, 130), fontsize=12, fontweight="bold")
    figure.savefig(path, dpi=_DPI, format="png")


def _draw_map(figure: "SubFigure", trace: RoutingTrace, phase: Phase) -> None:
    from matplotlib.colors import LogNorm

    heat = np.clip(fair_shares(trace.phases[phase].counts), _COLDEST, _HOTTEST)
    axes = figure.subplots()
    image = axes.imshow(heat, aspect="auto", interpolation="nearest", cmap="RdYlBu_r", norm=LogNorm(_COLDEST, _HOTTEST))
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=40)
    bar.set_ticks([0.25, 0.5, 1, 2, 4], labels=["1/4 or less", "1/2", "1", "2", "4 or more"])
    bar.ax.minorticks_off()
    bar.set_label("times the fair share of its layer's tokens")
    tokens = trace.phases[phase].tokens.max(initial=0.0)
    what = {"decode": "decoded tokens", "prefill": "tokens of prompts"}[phase]
    axes.set_title(f"Which experts {tokens:,.0f} {what} went to, {trace.top_k} of {trace.num_experts} each")
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    shown = np.unique(np.linspace(0, len(trace.layers) - 1, min(len(trace.layers), 16)).round().astype(int))
    axes.set_yticks(shown, labels=[str(trace.layers[row]) for row in shown])


def _draw_coverage(axes: "Axes", report: SkewReport) -> None:
    axes.set_title("Pinning: choices that the hottest experts take")
    kept = [100 * row.fraction for row in report.coverage]
    lines = (
        ("this traffic, in hindsight", [row.same for row in report.coverage], _OTHER, "-"),
        ("other traffic of the same kind", [row.held_out for row in report.coverage], _SOLID, "-"),
        ("if every part had its own favourites", [row.shuffled for row in report.coverage], _NULL, "--"),
        ("if all experts were alike", [row.uniform for row in report.coverage], _NULL, ":"),
    )
    for label, shares, colour, style in lines:
        width, values = 2.5 if colour == _SOLID else 1.5, [100 * share for share in shares]
        axes.plot(kept, values, style, color=colour, label=label, linewidth=width, marker="o", markersize=4)
    axes.set_xlabel("experts kept, % of all")
    _percents(axes, bool(report.coverage))


def _draw_caches(axes: "Axes", report: SkewReport) -> None:
    axes.set_title("Caching: hits of the experts used last, in each layer")
    rates = 100 * report.lru_by_layer
    if rates.size:
        slots = 100 * np.arange(rates.shape[1]) / (rates.shape[1] - 1)
        axes.fill_between(
            slots, rates.min(axis=0), rates.max(axis=0), color=_SOLID, alpha=0.15, label="worst to best layer"
        )
        axes.plot(slots, rates.mean(axis=0), color=_SOLID, linewidth=2.5, label="mean of all layers")
        axes.plot(slots, 100 * report.lru_shuffled, "--", color=_NULL, label="tokens in random order")
        axes.plot(slots, slots, ":", color=_NULL, label="if all experts were alike")
    axes.set_xlabel("slots, % of a layer's experts")
    _percents(axes, bool(rates.size))


def _percents(axes: "Axes", has_data: bool) -> None:
    axes.set_ylabel("% of choices")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    if has_data:
        axes.legend(loc="lower right", fontsize=9)
    else:
        axes.text(50, 50, "too little traffic", ha="center", va="center", color=_NULL)
