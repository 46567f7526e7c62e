"""Models that only say that they are loaded, on a machine with room for some, and a fleet of them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import Fleet
from isotherm.daemon.fleet.member import Lease
from isotherm.daemon.memory import MemoryPlanError

ROOM = 100


class Weights:
    """A model of some size; `machine` has all that are loaded."""

    def __init__(self, name: str, nbytes: int, machine: "Machine") -> None:
        self.name, self.nbytes, self._machine = name, nbytes, machine
        self.ill: str | None = None

    def ailment(self) -> str | None:
        return self.ill

    def abandon(self, reason: str) -> None:
        self._machine.log.append(f"!{self.name}")

    def restart(self) -> None:
        gate = self._machine.gates.get(f"restart {self.name}")
        assert gate is None or gate.wait(20)
        if f"restart {self.name}" in self._machine.broken:
            raise self._machine.broken[f"restart {self.name}"]
        self._machine.log.append(f"~{self.name}")
        self.ill = None

    def close(self) -> None:
        self._machine.log.append(f"-{self.name}")
        del self._machine.loaded[self.name]


class Machine:
    """Room for models, whose names end in their size; loads them, and notes what it did. gates: what a load waits for.
    broken: models that cannot be loaded, and why."""

    def __init__(self) -> None:
        self.loaded: dict[str, Weights] = {}
        self.log: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.broken: dict[str, Exception] = {}
        self.late = False  # what is too large is only noticed by loading it
        self.now = 1000.0

    def free(self) -> int:
        return ROOM - sum(each.nbytes for each in self.loaded.values())

    def demand(self, name: str) -> Callable[[int], object]:
        def enough(free: int) -> None:
            if not self.late and free < _size(name):
                raise MemoryPlanError(f"{name} needs {_size(name)}")

        return enough

    def tidy(self) -> None:
        self.tidied = set(self.loaded)

    def load(self, name: str, progress: Callable[[str, int, int], None]) -> Weights:
        if name in self.gates:
            while not self.gates[name].wait(0.005):
                progress("packing", 1, 2)
        if name in self.broken:
            raise self.broken[name]
        if self.free() < _size(name):
            raise MemoryPlanError(f"{name} does not fit")
        self.log.append(f"+{name}")
        self.loaded[name] = Weights(name, _size(name), self)
        return self.loaded[name]


def _size(name: str) -> int:
    return int(name[1:])


def make_fleet(machine: Machine, *names: str, **changes: Any) -> Fleet[Weights]:
    changes = {"free": machine.free, "clock": lambda: machine.now} | changes
    return Fleet(names, machine, EventLog(), **changes)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


async def use(lease: Awaitable[Lease[Weights]], name: str, machine: Machine) -> None:
    """A short request: it got the right model, which is loaded."""
    held = await lease
    assert held.value.name == name
    assert machine.loaded[name] is held.value
    await asyncio.sleep(0)
    assert name in machine.loaded
    held.release()
