"""Machines that this one is not: files by which a topology is read, and topologies made of the CPUs there are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isotherm.cpu_kernels.topology import Core, Topology


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def siblings(*cores: str) -> dict[str, str]:
    """The files that say which CPUs share a core, as lists such as "0,4" or "0-1"."""
    files = {}
    for core in cores:
        first, dash, last = core.partition("-")
        for cpu in range(int(first), int(last) + 1) if dash else map(int, core.split(",")):
            files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = core
    return files


def node(number: int, cpus: str, *, kib: int = 1024, distance: str = "10") -> dict[str, str]:
    folder = f"sys/devices/system/node/node{number}/"
    return {
        folder + "cpulist": cpus,
        folder + "meminfo": f"Node {number} MemTotal: {kib} kB\nNode {number} MemFree: {kib} kB",
        folder + "distance": distance,
    }


def nodes_here(nodes: int) -> Topology:
    """So many memory nodes on the CPUs of this machine: they are dealt out, and shared where there are too few."""
    cpus = sorted(os.sched_getaffinity(0))
    return Topology(tuple(Core((cpus[i % len(cpus)],), i % nodes) for i in range(max(nodes, len(cpus)))))


@contextmanager
def same_affinity() -> Iterator[None]:
    """The calling thread ends up on the CPUs that it had."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
