"""Memory pressure: what the system says of it, and what is given up for it, step by step, and had again afterwards."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .events import EventLog
from .machine import free_memory, memory_groups

SYSTEM = Path("/proc/pressure/memory")
LOOK_S, STEP_S, CALM_S = 2.0, 10.0, 30.0  # the kernel's averages are of ten seconds


@dataclass(frozen=True, slots=True)
class Reading:
    """stalled: per cent of the last ten seconds in which something waited for memory. free: bytes."""

    stalled: float
    free: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """Reads the pressure of the machine and of the control groups that this process is in. Where the system does not
    tell, there is none."""

    files: Callable[[], Sequence[Path]] = lambda: [SYSTEM, *(folder / "memory.pressure" for folder in memory_groups())]
    free: Callable[[], int] = free_memory

    def read(self) -> Reading:
        return Reading(max(map(_stalled, self.files()), default=0.0), self.free())


@dataclass(frozen=True, slots=True)
class Measure:
    """name: what is done, in words. act: done each STEP_S seconds while it is in force. undo: when it no longer is."""

    name: str
    act: Callable[[], None]
    undo: Callable[[], None] = lambda: None


class PressureWatch(Collector):
    """Takes one measure after the other while there is pressure, and ends all when there was none for a while. It looks
    every LOOK_S seconds, however often it is told to.

    most_stalled: per cent. least_free: bytes.
    """

    def __init__(
        self,
        measures: Sequence[Measure],
        events: EventLog,
        *,
        most_stalled: float,
        least_free: int,
        gauge: Gauge | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.level = 0  # so many of the measures are in force
        self._measures, self._events = tuple(measures), events
        self._most_stalled, self._least_free = most_stalled, least_free
        self._gauge, self._clock = gauge or Gauge(), clock
        self._reading = Reading(0.0, 0)
        self._looked = self._acted = self._pressed = -math.inf

    def look(self) -> None:
        """See whether there is pressure, and act."""
        now = self._clock()
        if now - self._looked < LOOK_S:
            return
        self._looked, self._reading = now, self._gauge.read()
        if self._is_pressed(1.0):
            self._pressed = now
            if self.level < len(self._measures) and now - self._acted >= STEP_S:
                self.level += 1
                self._tell(self._measures[self.level - 1].name)
        elif self._is_pressed(2.0):
            self._pressed = now  # it could soon be back
        elif self.level and now - self._pressed >= CALM_S:
            self._end()
        if now - self._acted >= STEP_S:
            self._acted = now
            for measure in self._measures[: self.level]:
                measure.act()

    def collect(self) -> Iterator[Metric]:
        """What /metrics shows."""
        yield GaugeMetricFamily("isotherm_memory_pressure_level", "Measures in force against pressure", self.level)
        yield GaugeMetricFamily(
            "isotherm_memory_stalled_ratio",
            "Share of the last ten seconds in which something waited for memory",
            self._reading.stalled / 100,
        )

    def _is_pressed(self, margin: float) -> bool:
        stalled, free = self._reading.stalled, self._reading.free
        return stalled * margin > self._most_stalled or free < self._least_free * margin

    def _tell(self, done: str) -> None:
        reading = self._reading
        state = f"{reading.stalled:.0f}% of the time something waits for memory, {reading.free >> 20} MiB are free"
        self._events.record("memory_pressure", f"{state}; {done}")

    def _end(self) -> None:
        for measure in self._measures[: self.level]:
            measure.undo()
        self.level = 0
        self._events.record("memory_pressure_over", "all is as before", logging.INFO)


def _stalled(file: Path) -> float:
    """Of a file of the kernel's, which begins with "some avg10=1.23"."""
    try:
        words = file.read_text(encoding="ascii").split()
    except OSError:  # an old kernel, or one that was told not to count
        return 0.0
    averages = [word.removeprefix("avg10=") for word in words if word.startswith("avg10=")]
    return float(averages[0]) if averages else 0.0
