"""Cores and memory within the limits of a control group, of both versions."""

from pathlib import Path

import psutil
import pytest
from isotherm.cpu_kernels.topology import Core, Topology, read_topology
from isotherm.daemon.machine import default_threads, free_memory

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "membership"


def test_without_groups_the_machine_is_the_limit(tmp_path, membership):
    assert default_threads(tmp_path, membership) == read_topology().fast_cores
    assert 0 < free_memory(tmp_path, membership) <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("member", "files"),
    [
        ("0::/box/job", {"box/job/cpu.max": "max 100000", "box/cpu.max": "50000 100000"}),
        ("3:cpu,cpuacct:/job", {"cpu/job/cpu.cfs_quota_us": "90000", "cpu/job/cpu.cfs_period_us": "100000"}),
    ],
)
def test_a_quota_below_one_cpu_gives_one_thread(member, files, tmp_path, membership):
    membership.write_text(member + "\n")
    write(tmp_path, files)
    assert default_threads(tmp_path, membership) == 1


def test_no_quota_is_no_limit(tmp_path, membership):
    membership.write_text("3:cpu:/\n0::/\n")
    write(tmp_path, {"cpu.max": "max 100000", "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"})
    assert default_threads(tmp_path, membership) == read_topology().fast_cores


@pytest.mark.parametrize(("quota", "threads"), [("max", 2), ("150000", 2), ("100000", 1)])
def test_slow_cores_and_second_cpus_of_a_core_get_no_thread(quota, threads, tmp_path, membership):
    topology = Topology((Core((0, 1)), Core((2, 3)), Core((4,), fast=False), Core((5,), fast=False)))
    membership.write_text("0::/\n")
    write(tmp_path, {"cpu.max": f"{quota} 100000"})
    assert default_threads(tmp_path, membership, topology) == threads


@pytest.mark.parametrize(
    ("member", "files"),
    [
        (
            "0::/job",
            {
                "job/memory.max": str(100 * MIB),
                "job/memory.current": str(90 * MIB),
                "job/memory.stat": f"anon {50 * MIB}\ninactive_file {30 * MIB}\n",
                "memory.max": "max",
                "memory.current": "0",
            },
        ),
        (
            "4:memory:/job",
            {
                "memory/job/memory.limit_in_bytes": str(100 * MIB),
                "memory/job/memory.usage_in_bytes": str(90 * MIB),
                "memory/job/memory.stat": f"cache 1\ntotal_inactive_file {30 * MIB}\n",
            },
        ),
    ],
)
def test_memory_is_what_the_group_has_left(member, files, tmp_path, membership):
    membership.write_text(member + "\n")
    write(tmp_path, files)
    assert free_memory(tmp_path, membership) == 40 * MIB


def test_a_group_over_its_limit_has_nothing_left(tmp_path, membership):
    membership.write_text("0::/\n")
    write(tmp_path, {"memory.max": str(MIB), "memory.current": str(2 * MIB)})
    assert free_memory(tmp_path, membership) == 0
