"""The picture that `isotherm profile show --png` draws: the heat map, and what pinning and caching would reach."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..placement.files import replacing
from ..placement.heat import fair_shares
from ..placement.skew import Skew
from ..placement.trace import Phase, RoutingTrace
from ..placement.verdict import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

_DPI = 130
_COLDEST, _HOTTEST = 0.25, 4.0  # times the fair share
_STRONG, _OTHER, _NULL = "#b2182b", "#21489f", "#707070"
_TICKS = 16  # layers that are named


def draw_routing(path: Path, trace: RoutingTrace, skew: Skew | None, verdict: Verdict, phase: Phase) -> None:
    """Write a PNG. Raises OSError where it cannot be written."""
    from matplotlib.figure import Figure  # without pyplot there is no window, and no state of the process

    figure = Figure(figsize=(14, 9), layout="constrained")
    top, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.2, 8)).flat
    left, right = below.subfigures(1, 2, squeeze=False, width_ratios=(3, 2)).flat
    _draw_map(left, trace, phase)
    upper, lower = right.subplots(2, 1)
    _draw_coverage(upper, skew)
    _draw_caches(lower, skew)
    headline, _, numbers = verdict.text.replace(" %", "\u00a0%").partition(": ")
    top.text(0.01, 0.75, headline[:1].upper() + headline[1:], fontsize=17, fontweight="bold")
    top.text(0.01, 0.64, textwrap.fill(numbers[:1].upper() + numbers[1:], 180), fontsize=10.5, va="top")
    with replacing(path) as file:
        figure.savefig(file, dpi=_DPI, format="png")


def _draw_map(figure: "SubFigure", trace: RoutingTrace, phase: Phase) -> None:
    from matplotlib.colors import LogNorm

    heat = np.clip(fair_shares(trace.phases[phase].counts), _COLDEST, _HOTTEST)
    axes = figure.subplots()
    norm = LogNorm(_COLDEST, _HOTTEST)
    image = axes.imshow(heat, aspect="auto", interpolation="nearest", cmap="RdYlBu_r", norm=norm)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=40)
    bar.set_ticks([0.25, 0.5, 1, 2, 4], labels=["1/4 or less", "1/2", "1", "2", "4 or more"])
    bar.ax.minorticks_off()
    bar.set_label("times the fair share of the layer's choices")
    tokens = trace.phases[phase].tokens.max(initial=0.0)
    what = {"decode": "decoded tokens", "prefill": "tokens of prompts"}[phase]
    axes.set_title(f"Where {tokens:,.0f} {what} went: {trace.top_k} of {trace.num_experts} experts in each layer")
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    shown = range(0, len(trace.layers), -(-len(trace.layers) // _TICKS))
    axes.set_yticks(shown, labels=[str(trace.layers[row]) for row in shown])


def _draw_coverage(axes: "Axes", skew: Skew | None) -> None:
    axes.set_title("Pinning: choices that the hottest experts take")
    axes.set_xlabel("experts kept, % of all")
    rows = () if skew is None else skew.coverage
    kept = [100 * row.fraction for row in rows]
    for label, shares, colour, style in (
        ("traffic they were learned from", [row.same for row in rows], _OTHER, "-"),
        ("other traffic", [row.held_out for row in rows], _STRONG, "-"),
        ("other traffic, if nothing carried over", [row.shuffled for row in rows], _NULL, "--"),
        ("if all experts were alike", [row.uniform for row in rows], _NULL, ":"),
    ):
        width, values = 3 if colour == _STRONG else 1.5, [100 * share for share in shares]
        axes.plot(kept, values, style, color=colour, label=label, linewidth=width, marker="o", markersize=4)
    _finish(axes, skew)
    axes.set_xlim(0, kept[-1] if kept else 50)


def _draw_caches(axes: "Axes", skew: Skew | None) -> None:
    axes.set_title("Caching: choices among those used last in the layer")
    axes.set_xlabel("slots, % of a layer's experts")
    if skew is not None:
        rates = 100 * skew.lru_by_layer
        slots = 100 * np.arange(rates.shape[1]) / (rates.shape[1] - 1)
        low, high = rates.min(axis=0), rates.max(axis=0)
        axes.fill_between(slots, low, high, color=_STRONG, alpha=0.15, label="worst to best layer")
        axes.plot(slots, rates.mean(axis=0), color=_STRONG, linewidth=3, label="mean of the layers")
        kept = [100 * row.per_layer / (rates.shape[1] - 1) for row in skew.coverage]
        pinned = [100 * float(row.by_layer.mean()) for row in skew.coverage]
        axes.plot(kept, pinned, color=_OTHER, label="pinned instead, other traffic", marker="o", markersize=4)
        axes.plot(slots, 100 * skew.lru_shuffled.mean(axis=0), "--", color=_NULL, label="tokens in random order")
        axes.plot(slots, slots, ":", color=_NULL, label="if all experts were alike")
    _finish(axes, skew)


def _finish(axes: "Axes", skew: Skew | None) -> None:
    axes.set_ylabel("% of choices")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    if skew is None:
        axes.text(0.5, 0.5, "too little traffic", ha="center", transform=axes.transAxes, color=_NULL)
    else:
        axes.legend(loc="best", fontsize=9)
