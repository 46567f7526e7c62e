"""The file of where experts came to lie: what is written is read again, and nothing else is believed."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.daemon.events import EventLog
from isotherm.daemon.history_keeper import HistoryKeeper
from isotherm.daemon.placement_history import (
    HistoryError,
    Move,
    PlacementHistory,
    Round,
    load_history,
    save_history,
)
from isotherm.placement.placed import Placement
from isotherm.placement.shape import CPU

HISTORY = PlacementHistory(
    fingerprint="ab",
    accelerators=("cuda:0", "cuda:1"),
    layers=(0, 2),
    where=np.array([[CPU, 0, 1], [1, CPU, 0]], np.int8),
    rates=np.array([[0.1, 0.5, 1.4], [1.0, 0.0, 1.0]]),
    rest=7.5,
    rounds=(Round(100.0, (Move(0, 0, 1, 2),)), Round(200.0, (Move(2, 1, 0, 1), Move(0, 1, 2, 0)))),
    made=9,
)


def placed(*layers: list[int]) -> Placement:
    experts = tuple(np.array(layer, np.int8) for layer in layers)
    return Placement(dense=(0, CPU, 1), experts=experts, embed=CPU, head=0)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    save_history(tmp_path / "h.json", HISTORY)
    read = load_history(tmp_path / "h.json", "ab")
    assert read is not None
    for name in ("where", "rates"):
        np.testing.assert_array_equal(getattr(read, name), getattr(HISTORY, name))
    for name in ("fingerprint", "accelerators", "layers", "rest", "rounds", "made"):
        assert getattr(read, name) == getattr(HISTORY, name)


def test_rounds_lead_back_to_where_all_began() -> None:
    first, second = HISTORY.earlier(placed([0, 0, 0], [], [0, 0, 0]))
    assert [own.tolist() for own in second.experts] == [[1, 0, CPU], [], [CPU, 1, 0]]
    assert [own.tolist() for own in first.experts] == [[1, CPU, 0], [], [CPU, 1, 0]]
    assert first.dense == (0, CPU, 1) and first.head == 0


@pytest.mark.parametrize(
    ("layers", "accelerators", "fits"),
    [
        (([0, 1, CPU], [], [0, 1, CPU]), ("cuda:0", "cuda:1"), True),
        (([0, 0, CPU], [], [0, 1, CPU]), ("cuda:0", "cuda:1"), False),
        (([0, 1, CPU, CPU], [], [0, 1, CPU, CPU]), ("cuda:0", "cuda:1"), False),
        (([0, 1, CPU], [0, 1, CPU], []), ("cuda:0", "cuda:1"), False),
        (([0, 1, CPU], [], [0, 1, CPU]), ("cuda:1", "cuda:0"), False),
        (([0, 1, CPU], [], [0, 1, CPU]), ("cuda:0",), False),
    ],
)
def test_a_history_fits_a_plan_of_the_same_slots(layers: Any, accelerators: tuple[str, ...], fits: bool) -> None:
    assert HISTORY.fits(placed(*layers), accelerators) == fits


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "a plan"},
        {"version": 2},
        {"where": [[CPU, 0, 2], [1, CPU, 0]]},
        {"where": [[CPU, 0], [1, CPU]]},
        {"where": [[CPU, 0, 300], [1, CPU, 0]]},
        {"where": [CPU, 0, 1]},
        {"rates": [[0.1, 0.5, float("nan")], [1, 0, 1]]},
        {"rates": [[0.1, 0.5, -1], [1, 0, 1]]},
        {"layers": [0, 0]},
        {"layers": [0, 1 << 40]},
        {"layers": [0, -2]},
        {"rest": -1},
        {"made": "many"},
        {"rounds": [{"at": 1, "moves": [[0, 0, 0, 1]]}]},
        {"rounds": [{"at": 1, "moves": [[1, 0, 1, 0]]}]},
        {"rounds": [{"at": 1, "moves": [[0, 0, 1]]}]},
        {"rounds": [{"at": 1, "moves": [[0, 0, 9, 0]]}]},
        {"rounds": 5},
        {"fingerprint": "cd"},
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    save_history(file, HISTORY)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(HistoryError, match=r"h\.json: is "):
        load_history(file, "ab")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", "[" * 100_000, '{"kind": "isotherm placement history"}'])
def test_a_damaged_file_is_put_aside(text: str, tmp_path: Path) -> None:
    file, events = tmp_path / "h.json", EventLog()
    file.write_text(text)
    assert HistoryKeeper(file, events).load("ab") is None
    assert events.counts() == {"placement_history_rejected": 1}
    assert not file.exists() and (tmp_path / "h.json.rejected").read_text() == text


def test_a_file_that_cannot_be_put_aside_is_told_and_begun_anew(tmp_path: Path) -> None:
    file, events = tmp_path / "h.json", EventLog()
    file.write_text("{")
    (tmp_path / "h.json.rejected").mkdir()  # no file can take its name
    assert HistoryKeeper(file, events).load("ab") is None
    assert events.counts() == {"placement_history_unread": 1}


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "h.json"
    save_history(file, replace(HISTORY, made=10))
    dead, alive, other = (
        tmp_path / name for name in ("h.json.999999999-1.part", f"h.json.{os.getppid()}-1.part", "g.json.1-1.part")
    )
    for part in (dead, alive, other):
        part.write_text("half of i")
    read = HistoryKeeper(file, EventLog()).load("ab")
    assert read is not None and read.made == 10
    assert not dead.exists() and alive.exists() and other.exists()
