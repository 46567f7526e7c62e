"""Fleet and models that hang: who is restarted, how often, and who waits meanwhile."""

import asyncio
import threading

import pytest
from isotherm.daemon.errors import EngineError
from isotherm.daemon.fleet.restarts import MAX_RESTARTS, WITHIN_S
from isotherm.daemon.memory import MemoryPlanError
from support.fleets import Machine, make_fleet, run, until, use


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
