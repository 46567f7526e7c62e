"""Files that other processes may read or write at the same time: a lock, and replacing in one step."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(lock: Path, wait: Callable[[], None] | None = None) -> Iterator[bool]:
    """Holds the lock file; the system frees it when the process ends, however it ends.

    wait: called before waiting for another holder; without it nobody waits, and False says that another holds it.
    """
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait is None:
                yield False
                return
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield True


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to that takes the target's name only when all of it is on the disk."""
    part = part_of(target)
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def part_of(target: Path) -> Path:
    """What `replacing` writes to."""
    return target.with_name(target.name + ".part")
