"""What this process may use of the machine: cores and memory, within the limits of its control group.

Containers and services are limited by Linux control groups: version 2 keeps all limits of a group in one folder,
version 1 a folder per resource. Limits of the groups above count as well.
"""

import math
import os
import platform
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from ..cpu_kernels.topology import Topology, read_topology

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def default_threads(groups: Path = GROUPS, membership: Path = MEMBERSHIP, topology: Topology | None = None) -> int:
    """One thread per physical core that is not a slow one, but no more than the CPU quota lets run."""
    quotas = [quota for folder in _folders("cpu", groups, membership) if (quota := _quota(folder)) is not None]
    cores = (topology or read_topology()).fast_cores
    return max(1, min([cores, *(math.ceil(quota) for quota in quotas)]))


def free_memory(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Bytes that can still be allocated: what the system calls available, or what the group has left of its limit."""
    left = [room for folder in _folders("memory", groups, membership) if (room := _room(folder)) is not None]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def memory_groups(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> Sequence[Path]:
    """The folders of the control groups that bound this process's memory, innermost first."""
    return tuple(_folders("memory", groups, membership))


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself, in one line."""
    lines = (line.partition(":") for line in _lines(cpuinfo))
    name = next((value for key, _, value in lines if key.strip() in ("model name", "Hardware", "cpu model")), "")
    return " ".join((name or platform.processor() or platform.machine() or "unknown CPU").split())


def lower_priority() -> None:
    """Let the calling thread run when others leave something over; on Linux, where each thread has its own priority."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _folders(resource: str, groups: Path, membership: Path) -> Iterator[Path]:
    """The folders with this process's limits on a resource, innermost first."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and resource not in controllers.split(","):
            continue
        root = groups / resource if controllers else groups
        here = root / path.lstrip("/")
        yield from (folder for folder in (here, *here.parents) if folder == root or root in folder.parents)


def _quota(folder: Path) -> float | None:
    """CPUs' worth of time per period."""
    words = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    return int(words[0]) / int(words[1])


def _room(folder: Path) -> int | None:
    """Bytes between what a group uses, file cache that can go aside, and its limit."""
    for limit_name, use_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, use = _words(folder / limit_name), _words(folder / use_name)
        if limit and use and limit[0].isdigit():
            fields = _words(folder / "memory.stat")
            cache = dict(zip(fields[::2], fields[1::2], strict=False)).get(cache_name, "0")
            return int(limit[0]) - int(use[0]) + int(cache)
    return None


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
