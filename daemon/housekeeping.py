"""Housekeeping: what earlier versions and other models left in the cache folder goes when it was not used for long,
and so does at once what killed daemons left in the state folder.

Safe beside other daemons: what they have mapped lives on without a name, compiled kernels are compiled and kept again,
and a file that is being written is locked.
"""

import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ..cpu_kernels.jit import cache_folder as kernel_folder
from ..experts.store import NOTE, remove_parts, remove_store
from ..placement.files import claimed
from .paths import cache_folder, packed_folder
from .state import remove_stale_states

logger = logging.getLogger(__name__)

DAY = 24 * 60 * 60.0
UNUSED = 30 * DAY  # what was not used for so long goes
KERNELS, DEMOS = 8, 2  # so many are kept: one for each version of the sources, and of the demo model
_KERNEL_NAME = re.compile(r"[0-9a-f]{16}")


def tidy() -> None:
    """Remove what is stale, and say in the log what it was, and what could not be removed."""
    try:
        remove_stale_states()
        _tidy(time.time())
    except OSError as error:
        logger.warning("the cache and state folders are not tidied: %s", error)


def _tidy(now: float) -> None:
    with suppress(OSError):  # there is none where Numba was told to use another
        os.utime(kernel_folder())
    remove_parts(packed_folder())
    kernels = (folder for folder in _folders(kernel_folder().parent) if _KERNEL_NAME.fullmatch(folder.name))
    demos = (folder for folder in _folders(cache_folder()) if folder.name.startswith("demo-v"))
    for folder in (*stale(kernels, KERNELS, now), *stale(demos, DEMOS, now)):
        _remove_folder(folder)
    for store, reason in stale_stores(packed_folder(), now):
        _remove_unless_locked(store, reason)


def stale(folders: Iterable[Path], kept: int, now: float) -> list[Path]:
    """Those not used for `UNUSED` seconds, and beyond the latest `kept` also those not used for a day."""
    used = sorted(((_last_use(folder), folder) for folder in folders), reverse=True)
    return [folder for i, (at, folder) in enumerate(used) if now - at > (UNUSED if i < kept else DAY)]


def stale_stores(folder: Path, now: float) -> Iterator[tuple[Path, str]]:
    """Stores that were not used for long, or for a day if their model is gone; and why."""
    for store in folder.glob("*.packed"):
        age = now - store.stat().st_mtime
        if age > UNUSED:
            yield store, f"it was not used for {age / DAY:.0f} days"
        elif age > DAY and _model_is_gone(store):
            yield store, "its model is gone"


def _model_is_gone(store: Path) -> bool:
    note = store.with_suffix(NOTE)
    return note.exists() and not os.path.exists(note.read_bytes())


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()] if parent.is_dir() else []


def _last_use(folder: Path) -> float:
    return max(path.stat().st_mtime for path in (folder, *_folders(folder)))


def _remove_folder(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
        logger.info("removed %s: another version's, not used lately", folder)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", folder, error)


def _remove_unless_locked(store: Path, reason: str) -> None:
    with claimed(store.with_suffix(".lock")) as held:
        if held:  # else it is being replaced
            remove_store(store, reason)
