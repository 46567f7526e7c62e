"""The picture of a trace's hit rates by policy, over how many experts of each layer are kept."""

from collections.abc import Sequence
from pathlib import Path

from ..placement.files import replacing
from ..placement.hit_rates import HitRate
from .what_if_plot import COLOURS, DPI, MARKS, NAMES


def draw_hit_rates(path: Path, rows: Sequence[HitRate]) -> None:
    """Write a PNG: a panel for each number of streams. Raises OSError where it cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = list(dict.fromkeys(row.streams for row in rows))
    figure = Figure(figsize=(8 * len(counts), 5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, streams in zip(figure.subplots(1, len(counts), squeeze=False)[0], counts, strict=True):
        own = [row for row in rows if row.streams == streams]
        for policy in dict.fromkeys(row.policy for row in own):
            points = [(100 * row.share, 100 * row.hit_rate) for row in own if row.policy == policy]
            axes.plot(*zip(*points, strict=True), marker=MARKS[policy], color=COLOURS[policy], label=NAMES[policy])
        axes.plot([0, 100], [0, 100], ":", color="#808080", label="if all experts were alike")
        axes.set_title("1 stream" if streams == 1 else f"{streams} streams")
        axes.set_xlabel("experts kept, % of each layer's")
        axes.set_ylabel("hits, % of the experts that a step wants")
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9)
    figure.suptitle("Hits of experts that are kept, by policy", fontweight="bold")
    with replacing(path) as file:
        figure.savefig(file, dpi=DPI, format="png")
