"""Files that several processes read and write: a lock, and replacing in one step."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO


@contextmanager
def locked(lock: Path, waiting: Callable[[], object] | None = None) -> Iterator[None]:
    """Holds the lock file, once nobody else does; the system frees it when the process ends, however it ends.

    Its folder is made where it is missing. waiting: called before waiting for another holder.
    """
    with _opened(lock) as file:
        if not _take(file):
            if waiting is not None:
                waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def claimed(lock: Path) -> Iterator[bool]:
    """`locked` for those who do not wait: False says that another holds the lock."""
    with _opened(lock) as file:
        yield _take(file)


def lock_of(path: Path) -> Path:
    """The lock file beside a file."""
    return path.with_name(path.name + ".lock")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the name of `path` only when all of it is on the disk; several may write at once.

    Where `path` is a link, the file that it names is replaced. Into a device or a pipe it is written as it comes.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # to take the place of a device would break it for all
        with path.open("wb") as file:
            yield file
        return
    with replacing_by_path(Path(os.path.realpath(path))) as part, part.open("wb") as file:
        yield file


@contextmanager
def replacing_by_path(target: Path) -> Iterator[Path]:
    """`replacing` for those who open the file themselves: its path, and nothing is there yet."""
    part = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def remove_parts_of(target: Path) -> None:
    """Remove what killed writers of `target` left; nobody may be writing it."""
    for part in target.parent.glob("*.part"):
        if part.name.rsplit(".", 2)[0] == target.name:
            part.unlink(missing_ok=True)


def _opened(lock: Path) -> TextIO:
    lock.parent.mkdir(parents=True, exist_ok=True)
    return lock.open("w")


def _take(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
