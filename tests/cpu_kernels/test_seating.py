"""Where workers sit: spread over memory nodes, bound to them or to cores, and told where that cannot be."""

import os
from pathlib import Path

import pytest
from isotherm.cpu_kernels.crew import Crew
from isotherm.cpu_kernels.seating import Seat, Seating, bind
from isotherm.cpu_kernels.topology import Core, Topology
from support.machines import nodes_here, same_affinity

ONE = Topology((Core((0, 4)), Core((1, 5)), Core((2,), fast=False)))
TWO = Topology((Core((0, 4), 0), Core((1, 5), 1), Core((2, 6), 0), Core((3, 7), 1)))


def test_on_one_node_nobody_is_bound() -> None:
    assert Seating(3, ONE).seats == (Seat(),) * 3
    assert Seating.of(2).seats == (Seat(),) * 2


def test_workers_are_spread_over_the_nodes_and_bound_to_them() -> None:
    even, odd = Seat(0, frozenset({0, 2, 4, 6})), Seat(1, frozenset({1, 3, 5, 7}))
    assert Seating(5, TWO).seats == (even, odd, even, odd, even)


def test_a_node_with_more_cores_gets_more_workers() -> None:
    topology = Topology((*(Core((cpu,), 0) for cpu in range(6)), Core((6,), 1), Core((7,), 1)))
    nodes = [seat.node for seat in Seating(8, topology).seats]
    assert (nodes[:2], nodes.count(0), nodes.count(1)) == ([0, 1], 6, 2)


def test_cores_are_taken_in_turn_fast_ones_first() -> None:
    cpus = [seat.cpus for seat in Seating(4, ONE, "cores").seats]
    assert cpus == [{0, 4}, {1, 5}, {2}, {0, 4}]


def test_each_worker_gets_a_core_of_its_node() -> None:
    seats = Seating(4, TWO, "cores").seats
    assert [(seat.node, seat.cpus) for seat in seats] == [(0, {0, 4}), (1, {1, 5}), (0, {2, 6}), (1, {3, 7})]


@pytest.mark.parametrize(("threads", "nodes"), [(1, 1), (2, 2), (8, 2)])
def test_only_nodes_with_workers_count(threads: int, nodes: int) -> None:
    assert Seating(threads, TWO).nodes == nodes


def test_affinity_without_a_known_core_binds_nobody() -> None:
    assert Seating(2, affinity="cores").seats == (Seat(),) * 2


def test_a_seat_binds_the_thread_that_takes_it() -> None:
    cpu = min(os.sched_getaffinity(0))
    with same_affinity():
        Seating(1).take(Seat(0, frozenset({cpu})))
        assert os.sched_getaffinity(0) == {cpu}


def test_a_seat_that_cannot_be_taken_is_told() -> None:
    told: list[tuple[str, str]] = []
    before = os.sched_getaffinity(0)
    Seating(1, note=lambda *note: told.append(note)).take(Seat(1, frozenset({100000})))
    assert os.sched_getaffinity(0) == before
    assert [name for name, _ in told] == ["thread_not_bound"]
    assert "memory node 1 could not be bound to the CPUs [100000]: " in told[0][1]


def test_a_system_that_binds_no_threads_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(OSError, match="binds no threads"):
        bind(frozenset({0}))


def test_a_crew_works_at_the_node_of_each_item() -> None:
    topology = nodes_here(2)
    with Crew(Seating(4, topology)) as crew:
        cpus = list(crew.map(lambda node: os.sched_getaffinity(0), [0, 1, 1, 0, 1], lambda node: node))
    assert cpus == [topology.cpus_of(node) for node in (0, 1, 1, 0, 1)]


def test_a_crew_on_one_node_is_not_bound() -> None:
    topology = Topology((Core((min(os.sched_getaffinity(0)),)),))
    with Crew(Seating(2, topology, "cores")) as crew:
        assert set(crew.map(lambda item: frozenset(os.sched_getaffinity(0)), range(4))) == {
            frozenset(os.sched_getaffinity(0))
        }


def test_what_fails_in_a_crew_is_raised_and_ends_it(tmp_path: Path) -> None:
    def work(item: int) -> int:
        if item == 2:
            raise FileNotFoundError(str(tmp_path))
        return item

    done = []
    with pytest.raises(FileNotFoundError), Crew(Seating(2)) as crew:
        done.extend(crew.map(work, range(9)))
        pytest.fail("nothing was raised")
    assert done in ([], [0, 1])
