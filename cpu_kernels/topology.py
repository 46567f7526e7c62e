"""The processors of this machine: cores, which of them are slow ones, and the memory nodes they sit at.

All of it is read from Linux's /sys and /proc below a root, so that another machine can be tried by a folder of files.
Only what this process may use counts: its CPU affinity, and the memory nodes of its control group. Where nothing can be
read each CPU is a core of its own, and all of them share one node.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SLOW = 0.8  # of the fastest core's speed: below are efficiency cores; cores of one kind differ by less than that


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core: those of its CPUs that may be used, the index of its memory node, and if it is not a slow one.

    Slow cores are the efficiency cores of a hybrid processor.
    """

    cpus: tuple[int, ...]
    node: int = 0
    fast: bool = True


@dataclass(frozen=True, slots=True)
class Topology:
    """cores by their first CPU. Nodes are numbered from 0 without gaps, each has cores and memory."""

    cores: tuple[Core, ...]

    @property
    def nodes(self) -> int:
        return 1 + max((core.node for core in self.cores), default=0)

    @property
    def fast_cores(self) -> int:
        return sum(core.fast for core in self.cores)

    @property
    def logical_cpus(self) -> int:
        """CPUs; two or more of them may share a core."""
        return sum(len(core.cpus) for core in self.cores)

    def cores_of(self, node: int) -> tuple[Core, ...]:
        """The node's cores, fast ones first."""
        return tuple(sorted((core for core in self.cores if core.node == node), key=lambda core: not core.fast))

    def cpus_of(self, node: int) -> frozenset[int]:
        return frozenset(cpu for core in self.cores_of(node) for cpu in core.cpus)


UNKNOWN = Topology(())  # one node


def read_topology(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> Topology:
    """The topology by the files below `root`; `allowed` CPUs, else those that the calling thread may run on."""
    cpus = sorted(_allowed() if allowed is None else allowed)
    groups: dict[str, list[int]] = {}
    for cpu in cpus:
        siblings = _text(_cpu(root, cpu) / "topology" / "thread_siblings_list")
        groups.setdefault(siblings or f"alone {cpu}", []).append(cpu)
    node_of = _nodes(root, cpus)
    slow = _slow(root, [group[0] for group in groups.values()])
    return Topology(
        tuple(Core(tuple(group), node_of.get(group[0], 0), group[0] not in slow) for group in groups.values())
    )


def _allowed() -> Iterable[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _cpu(root: Path, cpu: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}"


def _slow(root: Path, cpus: list[int]) -> set[int]:
    """Those of the CPUs, one a core, that belong to slow cores; none if all do."""
    small = _numbers(_text(root / "sys/devices/cpu_atom/cpus"))
    speeds = {cpu: _speed(_cpu(root, cpu)) for cpu in cpus}
    fastest = max(speeds.values(), default=0)
    slow = {cpu for cpu in cpus if cpu in small or speeds[cpu] < _SLOW * fastest}
    return slow if len(slow) < len(cpus) else set()


def _speed(folder: Path) -> int:
    """What the system says of a CPU's speed, in a unit that is the same for all of them; 0 where it says nothing."""
    text = _text(folder / "cpu_capacity") or _text(folder / "cpufreq" / "cpuinfo_max_freq")
    return int(text) if text.isdecimal() else 0


def _nodes(root: Path, cpus: list[int]) -> dict[int, int]:
    """The node's index of each CPU. CPUs of a node without memory of its own belong to the nearest that has some."""
    folder = root / "sys/devices/system/node"
    known = sorted(int(path.name[4:]) for path in folder.glob("node[0-9]*"))
    with_memory = [node for node in known if _has_memory(root, node)]
    home: dict[int, int] = {}
    for node in known if with_memory else []:
        nearest = node if node in with_memory else _nearest(folder, node, known, with_memory)
        home.update(dict.fromkeys(_numbers(_text(folder / f"node{node}" / "cpulist")).intersection(cpus), nearest))
    used = sorted(set(home.values()))
    return {cpu: used.index(node) for cpu, node in home.items()}


def _has_memory(root: Path, node: int) -> bool:
    """Whether the node has memory, and this process may take it."""
    status = (line.partition(":") for line in _text(root / "proc/self/status").splitlines())
    permitted = next((value for name, _, value in status if name == "Mems_allowed_list"), "")
    if permitted and node not in _numbers(permitted):
        return False
    lines = _text(root / f"sys/devices/system/node/node{node}/meminfo").splitlines()
    total = next((line.split()[-2] for line in lines if "MemTotal:" in line), "0")
    return total != "0"


def _nearest(folder: Path, node: int, known: list[int], among: list[int]) -> int:
    distances = dict(zip(known, map(int, _text(folder / f"node{node}" / "distance").split()), strict=False))
    return min(among, key=lambda other: distances.get(other, 0))


def _numbers(text: str) -> set[int]:
    """The numbers of a list such as 0-3,8."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
