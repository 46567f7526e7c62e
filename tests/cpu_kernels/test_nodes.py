"""A team on several memory nodes: each worker claims its node's work first, and the others' when its own is gone."""

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from isotherm.cpu_kernels import program as program_module
from isotherm.cpu_kernels.descriptor import BARRIER, COUNTER, STEP_SLOTS, slots
from isotherm.cpu_kernels.jit import kernel
from isotherm.cpu_kernels.memory import atomic_add, atomic_load, pause, write_i64
from isotherm.cpu_kernels.program import Op, Program
from isotherm.cpu_kernels.seating import Seating
from isotherm.cpu_kernels.team import Team
from support.machines import nodes_here, same_affinity

FIELDS = ("items", "claimed_by", "done", "other")
_ITEMS, _CLAIMED_BY, _DONE, _OTHER = slots(FIELDS)
ITEMS, ROUNDS, HELD_UP = 40, 20, 1
PATIENCE = 10**8  # looks of who waits: some seconds, after which nobody waits any more and the test fails


@kernel
def _in_step(d, step, worker):
    """Note who claims each item, and wait after it until the other op has as many done."""
    while True:
        item = atomic_add(d[COUNTER], 1)
        if item >= d[_ITEMS]:
            break
        write_i64(d[_CLAIMED_BY] + 8 * item, worker)
        atomic_add(d[_DONE], 1)
        for _ in range(PATIENCE):
            if atomic_load(d[_OTHER]) > item:
                break
            pause()
        else:
            atomic_add(d[_OTHER], d[_ITEMS])


@kernel
def _held_up(d, step, worker):
    """Note who claims each item. Worker HELD_UP holds its first one until all others are done, who wait for that."""
    while True:
        item = atomic_add(d[COUNTER], 1)
        if item >= d[_ITEMS]:
            break
        write_i64(d[_CLAIMED_BY] + 8 * item, worker)
        if worker == HELD_UP:
            atomic_add(d[_OTHER], 1)
        for _ in range(PATIENCE):
            if atomic_load(d[_OTHER]) and (worker != HELD_UP or atomic_load(d[_DONE]) >= 2 * d[_ITEMS] - 1):
                break
            pause()
        else:
            atomic_add(d[_OTHER], 1)
            atomic_add(d[_DONE], 2 * d[_ITEMS])
        atomic_add(d[_DONE], 1)


@pytest.fixture(autouse=True)
def ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for op in (_in_step, _held_up):
        monkeypatch.setitem(program_module.OPS, op.__name__, Op(op, FIELDS))
    with same_affinity():
        yield


class Pair:
    """Two ops side by side, one at each of two nodes."""

    def __init__(self, op: str, *, shared: bool) -> None:
        self.claimed_by = np.full((2, ITEMS), -1, np.int64)
        self.counts = np.zeros(16, np.int64)  # of two cache lines
        addresses = [self.counts[8 * i :].ctypes.data for i in range(2)]
        program = Program()
        for node in range(2):
            done, other = addresses if shared else (addresses[node], addresses[1 - node])
            claimed_by = self.claimed_by[node].ctypes.data
            program.add(op, node=node, items=ITEMS, claimed_by=claimed_by, done=done, other=other)
        self.program = program.freeze()

    def run(self, team: Team) -> list[list[int]]:
        """Who claimed the items of each op."""
        self.claimed_by[...], self.counts[...] = -1, 0
        team.run(self.program, np.zeros(STEP_SLOTS, np.int64))
        return self.claimed_by.tolist()


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(Seating(2, nodes_here(2)))
    yield team
    team.close()


def test_workers_that_are_not_late_stay_with_their_node(team: Team) -> None:
    pair = Pair("_in_step", shared=False)
    for _ in range(ROUNDS):
        assert pair.run(team) == [[0] * ITEMS, [1] * ITEMS]


def test_the_work_of_a_node_whose_worker_is_held_up_is_taken_over(team: Team) -> None:
    pair = Pair("_held_up", shared=True)
    for _ in range(ROUNDS):
        assert pair.run(team) == [[0] * ITEMS, [1] + [0] * (ITEMS - 1)]


def test_each_node_has_its_own_order_of_what_runs_side_by_side() -> None:
    program = Program()
    for node, meets in ((0, True), (0, False), (1, False), (2, False), (0, False), (1, True), (1, False)):
        program.add("_in_step", node=node, items=0, claimed_by=0, done=0, other=0)
        if meets:
            program.meet()
    rows = program.freeze().rows
    ids = {counter: op for op, counter in enumerate(rows[0, :, COUNTER].tolist())}
    first = [0, 1, 4, 2, 5, 3, 6]  # node 0's order, by the numbers of the ops
    numbers = [[first[ids[counter]] for counter in copy[:, COUNTER].tolist()] for copy in rows]
    assert numbers == [first, [0, 2, 5, 3, 1, 4, 6], [0, 3, 1, 4, 2, 5, 6]]
    assert (rows[:, :, BARRIER] == [1, 0, 0, 0, 0, 1, 1]).all()


def test_a_program_of_one_node_is_as_it_was_recorded() -> None:
    program = Program()
    for items in range(5):
        program.add("_in_step", items=items, claimed_by=0, done=0, other=0)
    rows = program.freeze().rows
    assert rows.shape[0] == 1 and rows[0, :, _ITEMS].tolist() == list(range(5))


def test_workers_and_the_caller_are_bound_to_their_nodes() -> None:
    topology, before = nodes_here(2), os.sched_getaffinity(0)
    team = Team(Seating(3, topology))
    Pair("_in_step", shared=False).run(team)
    workers = sorted(
        (thread for thread in threading.enumerate() if thread.name.startswith("isotherm-cpu-")), key=lambda t: t.name
    )
    cpus = [os.sched_getaffinity(0), *(os.sched_getaffinity(worker.native_id or -1) for worker in workers)]
    team.close()
    assert cpus == [topology.cpus_of(node) for node in (0, 1, 0)]
    assert os.sched_getaffinity(0) == before


def test_another_caller_is_bound_in_its_place(team: Team) -> None:
    before = os.sched_getaffinity(0)
    Pair("_in_step", shared=False).run(team)
    cpus: list[set[int]] = []

    def work() -> None:
        Pair("_in_step", shared=False).run(team)
        cpus.append(os.sched_getaffinity(0))

    caller = threading.Thread(target=work)
    caller.start()
    caller.join()
    assert cpus == [nodes_here(2).cpus_of(0)]
    assert os.sched_getaffinity(0) == before


def test_a_caller_on_one_node_is_not_bound() -> None:
    before, team = os.sched_getaffinity(0), Team(Seating(2, nodes_here(1)))
    Pair("_held_up", shared=True).run(team)
    assert os.sched_getaffinity(0) == before
    team.close()
