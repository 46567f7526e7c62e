"""The machine as files of the system describe it: cores, their kinds and memory nodes, within what may be used."""

from pathlib import Path

import pytest
from isotherm.cpu_kernels.topology import Core, Topology, read_topology
from support.machines import node, siblings, write_files


def test_cpus_of_a_core_belong_together(tmp_path: Path) -> None:
    root = write_files(tmp_path, siblings("0,2", "1,3") | node(0, "0-3"))
    assert read_topology(root, range(4)) == Topology((Core((0, 2)), Core((1, 3))))


def test_only_allowed_cpus_count(tmp_path: Path) -> None:
    root = write_files(tmp_path, siblings("0,4", "1,5", "2,6", "3,7") | node(0, "0-3,4-7"))
    topology = read_topology(root, [5, 2, 6])
    assert topology.cores == (Core((2, 6)), Core((5,)))
    assert (topology.fast_cores, topology.logical_cpus, topology.nodes) == (2, 3, 1)


def test_a_core_belongs_to_its_memory_node(tmp_path: Path) -> None:
    root = write_files(tmp_path, siblings("0-1", "2-3", "4-5", "6-7") | node(0, "0-1,4-5") | node(1, "2-3,6-7"))
    topology = read_topology(root, range(8))
    assert [core.node for core in topology.cores] == [0, 1, 0, 1]
    assert (topology.nodes, topology.cpus_of(0), topology.cpus_of(1)) == (2, {0, 1, 4, 5}, {2, 3, 6, 7})


def test_nodes_without_allowed_cpus_are_left_out(tmp_path: Path) -> None:
    root = write_files(tmp_path, node(0, "0") | node(1, "1") | node(4, "2"))
    topology = read_topology(root, [1, 2])
    assert (topology.nodes, topology.cpus_of(0), topology.cpus_of(1)) == (2, {1}, {2})


def test_cpus_without_memory_belong_to_the_nearest_node_that_has_some(tmp_path: Path) -> None:
    files = node(0, "0", distance="10 30 20") | node(1, "1", kib=0, distance="30 10 12") | node(2, "2")
    topology = read_topology(write_files(tmp_path, files), range(3))
    assert (topology.cpus_of(0), topology.cpus_of(1)) == ({0}, {1, 2})


def test_memory_that_the_group_forbids_is_none(tmp_path: Path) -> None:
    files = node(0, "0", distance="10 20") | node(1, "1", distance="20 10")
    files["proc/self/status"] = "Name:\tisotherm\nMems_allowed_list:\t1"
    topology = read_topology(write_files(tmp_path, files), range(2))
    assert (topology.nodes, topology.cpus_of(0)) == (1, {0, 1})


CPU = "sys/devices/system/cpu/cpu{}/"


@pytest.mark.parametrize(
    "kinds",
    [
        {CPU.format(cpu) + "cpu_capacity": "1024" if cpu < 4 else "600" for cpu in range(6)},
        {CPU.format(cpu) + "cpufreq/cpuinfo_max_freq": f"{5800000 - 1600000 * (cpu > 3)}" for cpu in range(6)},
        {"sys/devices/cpu_atom/cpus": "4-5", "sys/devices/cpu_core/cpus": "0-3"},
    ],
    ids=["capacity", "frequency", "kind"],
)
def test_efficiency_cores_are_slow(kinds: dict[str, str], tmp_path: Path) -> None:
    root = write_files(tmp_path, siblings("0-1", "2-3", "4", "5") | kinds)
    topology = read_topology(root, range(6))
    assert [core.fast for core in topology.cores] == [True, True, False, False]
    assert topology.fast_cores == 2
    assert [core.cpus for core in topology.cores_of(0)] == [(0, 1), (2, 3), (4,), (5,)]


def test_cores_that_boost_a_little_higher_are_of_the_same_kind(tmp_path: Path) -> None:
    speeds = {CPU.format(cpu) + "cpufreq/cpuinfo_max_freq": f"{5200000 + 400000 * (cpu == 1)}" for cpu in range(3)}
    assert read_topology(write_files(tmp_path, speeds), range(3)).fast_cores == 3


def test_where_only_slow_cores_are_allowed_they_are_the_fast_ones(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"sys/devices/cpu_atom/cpus": "2-3"})
    assert read_topology(root, [2, 3]).fast_cores == 2


def test_a_system_that_says_nothing_has_one_node_of_single_cpus(tmp_path: Path) -> None:
    assert read_topology(tmp_path, [3, 1]) == Topology((Core((1,)), Core((3,))))


def test_this_machine_can_be_read() -> None:
    topology = read_topology()
    assert topology.cores and 1 <= topology.fast_cores <= len(topology.cores) <= topology.logical_cpus
    assert all(topology.cores_of(node) for node in range(topology.nodes))
