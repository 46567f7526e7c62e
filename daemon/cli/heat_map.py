"""The layer x expert heat map in a terminal."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ...placement.heat import fair_shares, squeezed
from ...placement.trace import Phase

if TYPE_CHECKING:
    from ...placement.trace import RoutingTrace

_WIDEST_CELL = 6
_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#%@"
_STOPS = (-2.0, -1.0, 0.0, 1.0, 2.0)  # log2 of the heat, and the colour there: cold blue, hot red
_COLOURS = ((33, 72, 160), (110, 155, 210), (215, 215, 215), (235, 140, 90), (178, 24, 43))


def default_phase(trace: "RoutingTrace") -> Phase:
    """Decode where it has any tokens."""
    return "decode" if trace.phases["decode"].tokens.any() else "prefill"


def heat_map(trace: "RoutingTrace", phase: Phase, console: Console) -> Text:
    """A line for each MoE layer, as wide as the console at most. With colours where it has them, else with marks."""
    counts = trace.phases[phase].counts
    label = max(len(str(layer)) for layer in trace.layers)
    heat = squeezed(fair_shares(counts), max(console.width - label - 2, 8))
    cell = max(1, min(_WIDEST_CELL, (console.width - label - 2) // heat.shape[1]))
    text = Text(no_wrap=True)
    text.append(_title(trace, phase, heat.shape[1]) + "\n")
    draw = _coloured if console.color_system and not console.options.ascii_only else _marked
    for layer, row in zip(trace.layers, heat, strict=True):
        text.append(f"{layer:>{label}}  ")
        draw(text, row, cell, ascii_only=console.options.ascii_only)
        text.append("\n")
    text.append(" " * (label + 2))
    for name, level in zip(("1/4", "1/2", "1", "2", "4"), _STOPS, strict=True):
        draw(text, np.array([2.0**level]), 2, ascii_only=console.options.ascii_only)
        text.append(f" {name}   ")
    text.append("times the fair share")
    return text


def _title(trace: "RoutingTrace", phase: Phase, columns: int) -> str:
    tokens = trace.phases[phase].tokens.max(initial=0.0)
    each = -(-trace.num_experts // columns)
    squeeze = f"\neach column the hottest of {each} experts" if each > 1 else ""
    what = {"decode": "decoded tokens", "prefill": "tokens of prompts"}[phase]
    return (
        f"{tokens:,.0f} {what}, {trace.top_k} of {trace.num_experts} experts in each of {len(trace.layers)} layers\n"
        f"layers downwards, experts across{squeeze}"
    )


def _coloured(text: Text, heat: NDArray[np.float64], cell: int, *, ascii_only: bool) -> None:
    levels = np.log2(np.maximum(heat, 2.0 ** _STOPS[0]))
    channels = [np.interp(levels, _STOPS, values) for values in zip(*_COLOURS, strict=True)]
    for colour in np.stack(channels, axis=-1).astype(int).tolist():
        text.append("█" * cell, Style(color="rgb({},{},{})".format(*colour)))


def _marked(text: Text, heat: NDArray[np.float64], cell: int, *, ascii_only: bool) -> None:
    marks = _ASCII if ascii_only else _BLOCKS
    levels = np.interp(np.log2(np.maximum(heat, 2.0 ** _STOPS[0])), (_STOPS[0], _STOPS[-1]), (0, len(marks) - 1))
    text.append("".join(marks[place] * cell for place in levels.round().astype(int)))
