"""Files that several processes write: a lock, and replacing in one step."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until nobody else holds the lock file beside `path`, and holds it. The folder is made where it is missing;
    the system frees the lock when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the name of `path` only when all of it is on the disk. One writer at a time: hold
    the lock."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
