"""Files that several processes write: a lock, and replacing in one step."""

import fcntl
import os
import threading
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
    """A file to write to that takes the name of `path` only when all of it is on the disk; several may write at once.

    Where `path` is a link, the file that it names is replaced. Into a device or a pipe it is written as it comes.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # to take the place of a device would break it for all
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
