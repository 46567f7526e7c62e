"""Fleet on models that only say that they are loaded: who is loaded when, who leaves, and who waits for whom."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from isotherm.daemon.errors import EngineError, ModelNotLoadedError, OverloadedError
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import RETRY_S, Fleet
from isotherm.daemon.fleet.member import Lease
from isotherm.daemon.fleet.restarts import MAX_RESTARTS, WITHIN_S
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
    asyncio.run(asyncio.wait_for(work, 20))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
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


def test_models_are_loaded_on_demand_and_side_by_side_where_there_is_room() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a40", "b40", "c40")
        await use(fleet.lease("a40"), "a40", machine)
        await use(fleet.lease("b40"), "b40", machine)
        assert machine.log == ["+a40", "+b40"]
        assert fleet.lease_now("c40") is None

    run(work())


def test_the_least_recently_used_one_leaves_for_another() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a40", "b40", "c40")
        for name in ("a40", "b40", "a40", "c40"):
            machine.now += 1
            await use(fleet.lease(name), name, machine)
        assert machine.log == ["+a40", "+b40", "-b40", "+c40"]

    run(work())


def test_one_without_requests_leaves_before_an_older_one_with_some() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a40", "b40", "c40")
        await fleet.lease("a40")
        machine.now += 1
        await use(fleet.lease("b40"), "b40", machine)
        await use(fleet.lease("c40"), "c40", machine)
        assert machine.log == ["+a40", "+b40", "-b40", "+c40"]

    run(work())


def test_a_model_in_use_is_waited_for_and_later_requests_for_it_queue_behind() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a60", "b60")
        open_one = await fleet.lease("a60")
        other = asyncio.create_task(use(fleet.lease("b60"), "b60", machine))
        await until(lambda: fleet.show()[0]["state"] == "leaving")
        late = asyncio.create_task(use(fleet.lease("a60"), "a60", machine))
        await asyncio.sleep(0.02)
        assert machine.log == ["+a60"]
        assert not late.done()
        open_one.release()
        await asyncio.gather(other, late)
        assert machine.log == ["+a60", "-a60", "+b60", "-b60", "+a60"]

    run(work())


def test_the_model_stays_if_nobody_waits_for_the_other_any_more() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a60", "b60")
        open_one = await fleet.lease("a60")
        other = asyncio.create_task(fleet.lease("b60"))
        await until(lambda: fleet.show()[0]["state"] == "leaving")
        late = asyncio.create_task(use(fleet.lease("a60"), "a60", machine))
        await asyncio.sleep(0)
        other.cancel()
        await late
        open_one.release()
        assert machine.log == ["+a60"]
        assert [each["state"] for each in fleet.show()] == ["ready", "cold"]

    run(work())


def test_what_cannot_fit_even_alone_is_refused_and_the_others_stay() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a60", "b101")
        await use(fleet.lease("a60"), "a60", machine)
        with pytest.raises(ModelNotLoadedError, match="'b101' could not be loaded: b101 needs 101") as caught:
            await fleet.lease("b101")
        assert caught.value.retry_after == RETRY_S
        assert machine.log == ["+a60"]
        assert [each["state"] for each in fleet.show()] == ["ready", "failed"]

    run(work())


def test_room_that_only_a_load_finds_lacking_is_made_too() -> None:
    async def work() -> None:
        machine = Machine()
        machine.late = True
        fleet = make_fleet(machine, "a60", "b60")
        await use(fleet.lease("a60"), "a60", machine)
        await use(fleet.lease("b60"), "b60", machine)
        assert machine.log == ["+a60", "-a60", "+b60"]

    run(work())


def test_a_broken_model_is_refused_at_once_until_it_is_tried_again() -> None:
    async def work() -> None:
        machine = Machine()
        machine.broken["a10"] = ValueError("its file is cut")
        fleet = make_fleet(machine, "a10")
        for _ in range(2):
            with pytest.raises(ModelNotLoadedError, match="its file is cut"):
                await fleet.lease("a10")
        del machine.broken["a10"]
        with pytest.raises(ModelNotLoadedError):
            await fleet.lease("a10")
        machine.now += RETRY_S
        await use(fleet.lease("a10"), "a10", machine)

    run(work())


def test_idle_models_are_let_go_after_their_time() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a10", "b10", "c10", keep_s=60)
        for name, keep in (("a10", None), ("b10", 600.0), ("c10", None)):
            lease = await fleet.lease(name)
            lease.keep_for(keep)
            if name != "c10":
                lease.release()
        machine.now += 59
        fleet.let_go()
        await asyncio.sleep(0.02)
        assert len(machine.loaded) == 3
        machine.now += 1
        fleet.let_go()
        await until(lambda: fleet.show()[0]["state"] == "cold")
        assert set(machine.loaded) == {"b10", "c10"}  # one has more time, one is in use
        await use(fleet.lease("a10"), "a10", machine)

    run(work())


def test_all_idle_models_but_the_last_used_are_unloaded_when_memory_is_short() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a10", "b10", "c10", "d10")
        held = await fleet.lease("a10")
        for name in ("b10", "d10", "c10"):
            machine.now += 1
            await use(fleet.lease(name), name, machine)
        fleet.unload_idle()
        await until(lambda: set(machine.loaded) == {"a10", "c10"})
        fleet.unload_idle()
        await asyncio.sleep(0.02)
        assert set(machine.loaded) == {"a10", "c10"}
        held.release()

    run(work())


def test_a_model_that_is_wanted_while_it_leaves_is_loaded_again() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a10")
        await use(fleet.lease("a10"), "a10", machine)
        fleet.unload("a10")
        await use(fleet.lease("a10"), "a10", machine)

    run(work())


def test_requests_for_many_models_all_get_theirs() -> None:
    async def work() -> None:
        machine = Machine()
        names = ("a60", "b50", "c40", "d90")
        fleet = make_fleet(machine, *names)
        await asyncio.gather(*(use(fleet.lease(name), name, machine) for _ in range(5) for name in names))
        assert machine.log[0] == "+a60"
        assert not any(each["waiting"] or each["requests"] for each in fleet.show())

    run(work())


def test_more_than_may_wait_are_refused() -> None:
    async def work() -> None:
        machine = Machine()
        machine.gates["a10"] = threading.Event()
        fleet = make_fleet(machine, "a10", max_waiting=1)
        first = asyncio.create_task(use(fleet.lease("a10"), "a10", machine))
        await until(lambda: fleet.loading() == ["a10"])
        with pytest.raises(OverloadedError):
            await fleet.lease("a10")
        machine.gates["a10"].set()
        await first

    run(work())


def test_closing_the_door_refuses_who_waits_and_stops_a_load() -> None:
    async def work() -> None:
        machine = Machine()
        machine.gates["b10"] = threading.Event()
        fleet = make_fleet(machine, "a10", "b10")
        held = await fleet.lease("a10")
        waits = asyncio.create_task(fleet.lease("b10"))
        await until(lambda: fleet.show()[1]["loading"] == {"stage": "packing", "done": 1, "total": 2})
        fleet.shut("going down")
        for lease in (waits, fleet.lease("a10")):
            with pytest.raises(EngineError, match="going down"):
                await lease
        held.release()
        await until(lambda: not fleet.loading())
        fleet.close()
        assert machine.log == ["+a10", "-a10"]

    run(work())


def test_a_model_that_hangs_is_restarted_and_requests_wait_meanwhile() -> None:
    async def work() -> None:
        machine = Machine()
        machine.gates["restart a10"] = threading.Event()
        fleet = make_fleet(machine, "a10", "b10")
        open_one = await fleet.lease("a10")
        open_one.value.ill = "a step takes too long"
        fleet.heal()
        assert machine.log == ["+a10", "!a10"]
        open_one.release()
        late = asyncio.create_task(use(fleet.lease("a10"), "a10", machine))
        await use(fleet.lease("b10"), "b10", machine)  # others are not held up
        assert not late.done()
        assert fleet.loading() == ["a10"]
        fleet.heal()
        machine.gates["restart a10"].set()
        await late
        assert machine.log == ["+a10", "!a10", "+b10", "~a10"]
        assert [row["restarts"] for row in fleet.show()] == [1, 0]
        assert fleet.lost is None

    run(work())


def test_a_model_that_hangs_while_it_leaves_is_only_abandoned() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a60", "b60")
        open_one = await fleet.lease("a60")
        other = asyncio.create_task(use(fleet.lease("b60"), "b60", machine))
        await until(lambda: fleet.show()[0]["state"] == "leaving")
        open_one.value.ill = "a step takes too long"
        fleet.heal()
        fleet.heal()
        open_one.release()
        await other
        assert machine.log == ["+a60", "!a60", "-a60", "+b60"]

    run(work())


def test_restarts_are_a_remedy_only_a_few_times_an_hour() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a10")
        lease = await fleet.lease("a10")
        for count in range(1, MAX_RESTARTS + 2):
            machine.now += 1
            assert fleet.lost is None
            lease.value.ill = "it hangs"
            fleet.heal()
            await until(lambda count=count: machine.log.count("~a10") == min(count, MAX_RESTARTS))
            await until(lambda: not fleet.loading())
        assert fleet.lost == "3 restarts within an hour were not enough; the last reason: it hangs"

    run(work())


def test_restarts_of_long_ago_do_not_count() -> None:
    async def work() -> None:
        machine = Machine()
        fleet = make_fleet(machine, "a10")
        lease = await fleet.lease("a10")
        for _ in range(2 * MAX_RESTARTS):
            machine.now += WITHIN_S / MAX_RESTARTS
            lease.value.ill = "it hangs"
            fleet.heal()
            await until(lambda: not fleet.loading())
        assert fleet.lost is None

    run(work())


def test_a_model_that_cannot_be_restarted_is_lost_and_whoever_waits_is_told() -> None:
    async def work() -> None:
        machine = Machine()
        machine.gates["restart a10"] = threading.Event()
        machine.broken["restart a10"] = MemoryPlanError("there is no memory")
        fleet = make_fleet(machine, "a10")
        lease = await fleet.lease("a10")
        lease.value.ill = "it hangs"
        fleet.heal()
        late = asyncio.create_task(fleet.lease("a10"))
        await asyncio.sleep(0)
        machine.gates["restart a10"].set()
        with pytest.raises(EngineError, match="could not be restarted: there is no memory"):
            await late
        assert fleet.lost is not None

    run(work())
