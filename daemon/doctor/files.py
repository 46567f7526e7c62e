"""Looks at files of this user: folders that must be writable, room on the disk, and what is left of the past."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ...cpu_kernels.jit import cache_folder as kernel_folder
from ..housekeeping import stale_stores
from ..memory import GIB
from ..paths import cache_folder, packed_folder, state_folder
from ..state import read_state
from .finding import Finding, advice, fault, good
from .patient import Patient

_ROOM = 2 * GIB


def folders(patient: Patient) -> Iterator[Finding]:
    """Cache, compiled kernels and state."""
    for subject, folder, variable, cost in (
        ("cache", cache_folder(), "XDG_CACHE_HOME", "weights are packed again at each start"),
        ("kernels", kernel_folder(), "XDG_CACHE_HOME", "kernels are compiled again at each start"),
        ("state", state_folder(), "XDG_STATE_HOME", "daemons cannot be found, nor routes be kept"),
    ):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            yield good(subject, str(folder))
        else:
            yield fault(subject, f"{folder} cannot be written: {cost}", f"make it writable, or set {variable}")


def room(patient: Patient) -> Iterator[Finding]:
    """For packed weights."""
    there = next(path for path in (packed_folder(), *packed_folder().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < _ROOM:
        yield fault(
            "disk",
            f"{free / GIB:.1f} GiB are free for packed weights below {there}",
            "free some space, set XDG_CACHE_HOME to another disk, or serve with --no-pack-cache",
        )
    else:
        yield good("disk", f"{free / GIB:.0f} GiB free below {there}")


def leftovers(patient: Patient) -> Iterator[Finding]:
    """Packed weights that nobody used for long, and state files of daemons that are gone."""
    stale = list(stale_stores(packed_folder(), time.time()))
    if stale:
        size = sum(path.stat().st_size for path, _ in stale)
        yield advice(
            "leftovers",
            f"{len(stale)} packed models, {size / GIB:.1f} GiB: {stale[0][1]}",
            "the next serve removes them",
        )
    dead = [path for path in state_folder().glob("serve-*.json") if _port(path) and read_state(_port(path)) is None]
    if dead:
        yield advice("state", f"{dead[0]} is of a daemon that was killed", "the next serve removes it")


def _port(path: Path) -> int:
    digits = path.stem.removeprefix("serve-")
    return int(digits) if digits.isdecimal() else 0


LOOKS = (folders, room, leftovers)
