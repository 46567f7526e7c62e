"""Memory pressure: read from files like the kernel's, acted on step by step, and over by itself."""

from pathlib import Path

import pytest
from isotherm.daemon.events import EventLog
from isotherm.daemon.pressure import CALM_S, LOOK_S, STEP_S, Gauge, Measure, PressureWatch, Reading

MIB = 1 << 20


class Machine:
    """A clock, a pressure file and memory that tests set, and a watch with two measures that note what they do."""

    def __init__(self, folder: Path) -> None:
        self.file, self.free, self.now = folder / "memory.pressure", 1000 * MIB, 0.0
        self.log: list[str] = []
        self.events = EventLog()
        self.stall(0.0)
        measures = [
            Measure(name, lambda name=name: self.log.append(name), lambda name=name: self.log.append(f"no {name}"))
            for name in ("first", "second")
        ]
        self.watch = PressureWatch(
            measures,
            self.events,
            most_stalled=20.0,
            least_free=100 * MIB,
            gauge=Gauge(lambda: [folder / "missing", self.file], lambda: self.free),
            clock=lambda: self.now,
        )

    def stall(self, percent: float) -> None:
        some = f"some avg10={percent:.2f} avg60=0.10 avg300=0.00 total=96033356"
        self.file.write_text(f"{some}\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=73875761\n")

    def after(self, seconds: float) -> int:
        """The level when so much time has passed, of which each look was taken."""
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK_S
            self.watch.look()
        return self.watch.level


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_kernels_files_are_read(tmp_path: Path, machine: Machine) -> None:
    machine.stall(12.5)
    assert Gauge(lambda: [machine.file], lambda: 7).read() == Reading(12.5, 7)
    assert Gauge(lambda: [tmp_path / "missing"], lambda: 7).read() == Reading(0.0, 7)


def test_this_machine_can_be_asked() -> None:
    reading = Gauge().read()
    assert 0.0 <= reading.stalled <= 100.0
    assert reading.free > 0


def test_without_pressure_nothing_is_done(machine: Machine) -> None:
    machine.stall(19.0)
    assert machine.after(60) == 0
    assert machine.log == []


@pytest.mark.parametrize("how", ["stalls", "little is free"])
def test_measures_are_taken_one_after_the_other(machine: Machine, how: str) -> None:
    if how == "stalls":
        machine.stall(21.0)
    else:
        machine.free = 99 * MIB
    assert machine.after(LOOK_S) == 1
    assert machine.log == ["first"]
    assert machine.after(STEP_S - LOOK_S) == 1
    assert machine.after(LOOK_S) == 2
    assert machine.log == ["first", "first", "second"]
    assert machine.after(STEP_S) == 2
    assert [event.name for event in machine.events.recent()] == ["memory_pressure"] * 2
    assert "something waits for memory" in machine.events.recent()[0].detail
    assert machine.events.recent()[1].detail.endswith("; second")


def test_when_there_was_none_for_a_while_all_is_as_before(machine: Machine) -> None:
    machine.stall(50.0)
    machine.after(STEP_S + LOOK_S)
    machine.log.clear()
    machine.stall(15.0)  # less than before, and still too near
    assert machine.after(2 * CALM_S) == 2
    machine.stall(0.0)
    assert machine.after(CALM_S - LOOK_S) == 2
    machine.log.clear()
    assert machine.after(LOOK_S) == 0
    assert machine.log[-2:] == ["no first", "no second"]
    assert machine.events.recent()[-1].name == "memory_pressure_over"
    assert machine.after(60) == 0


def test_the_level_is_a_metric(machine: Machine) -> None:
    machine.stall(50.0)
    machine.after(LOOK_S)
    values = {family.name: family.samples[0].value for family in machine.watch.collect()}
    assert values == {"isotherm_memory_pressure_level": 1, "isotherm_memory_stalled_ratio": 0.5}
