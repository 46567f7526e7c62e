"""Fleet on models that only say that they are loaded: who is loaded when, who leaves, and who waits for whom."""

import asyncio
import threading

import pytest
from isotherm.daemon.errors import EngineError, ModelNotLoadedError, OverloadedError
from isotherm.daemon.fleet.fleet import RETRY_S
from support.fleets import Machine, make_fleet, run, until, use


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
