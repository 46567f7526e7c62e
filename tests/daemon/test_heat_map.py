"""The heat map in a terminal: one line a layer, within the width, in colours, marks or plain ASCII."""

import io

import numpy as np
import pytest
from isotherm.daemon.cli.heat_map import default_phase, heat_map
from isotherm.placement.trace import RoutingTrace, empty_trace
from rich.console import Console


def trace_of(counts: list[list[float]]) -> RoutingTrace:
    """A trace with these counts of decode."""
    trace = empty_trace("ab" * 32, tuple(range(3, 3 + len(counts))), len(counts[0]), 2)
    phase = trace.phases["decode"]
    phase.counts[:] = counts
    phase.tokens[:] = phase.counts.sum(axis=1) / 2
    return trace


def drawn(trace: RoutingTrace, *, width: int = 80, encoding: str = "utf-8", colour: str | None = None) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding)
    console = Console(file=file, width=width, color_system=colour, force_terminal=colour is not None)  # type: ignore[arg-type]
    console.print(heat_map(trace, "decode", console), highlight=False)
    file.flush()
    return raw.getvalue().decode(encoding)


HOT = [[8.0, 1.0, 1.0, 6.0], [4.0, 4.0, 4.0, 4.0]]


def test_each_layer_is_a_line_of_marks_by_heat() -> None:
    lines = drawn(trace_of(HOT)).splitlines()
    assert lines[0] == "8 decoded tokens, 2 of 4 experts in each of 2 layers"
    assert lines[2] == "3  " + "▆" * 6 + " " * 12 + "▅" * 6
    assert lines[3] == "4  " + "▄" * 24


def test_a_terminal_without_unicode_gets_ascii() -> None:
    lines = drawn(trace_of(HOT), encoding="ascii").splitlines()
    assert all(line.isascii() for line in lines)
    assert lines[2] == "3  " + "#" * 6 + " " * 12 + "*" * 6


def test_a_terminal_with_colours_gets_them() -> None:
    text = drawn(trace_of(HOT), colour="truecolor")
    assert "\x1b[38;2;235;140;90m" in text  # twice the fair share
    assert "\x1b[38;2;215;215;215m" in text  # the fair share
    assert "\x1b[38;2;33;72;160m" in text  # a quarter of it


def test_more_experts_than_columns_are_squeezed_and_it_is_said() -> None:
    counts = np.ones((2, 128))
    counts[0, 77] = 1000
    lines = drawn(trace_of(counts.tolist()), width=40).splitlines()
    assert "each column the hottest of 4 experts" in lines
    (row,) = [line for line in lines if line.startswith("3  ")]
    assert len(row) == 3 + 32 and row[3 + 77 // 4] == "█"


@pytest.mark.parametrize(("tokens", "phase"), [(0.0, "prefill"), (3.0, "decode")])
def test_decode_is_shown_where_there_is_any(tokens: float, phase: str) -> None:
    trace = trace_of(HOT)
    trace.phases["decode"].tokens[:] = tokens
    assert default_phase(trace) == phase
