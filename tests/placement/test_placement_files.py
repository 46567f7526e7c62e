"""Files that are replaced in one step, and locks."""

import errno
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from isotherm.placement.files import claimed, locked, remove_parts_of, replacing
from isotherm.placement.plan import PlanError
from isotherm.placement.plan_file import MAX_BYTES, load_plan
from isotherm.placement.trace import TraceError
from isotherm.placement.trace_file import load_trace


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(OSError, match="No space"), replacing(tmp_path / "file") as file:
        file.write(b"half of the n")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_two_writers_at_once_each_write_a_whole_file(tmp_path: Path) -> None:
    def other() -> None:
        with replacing(tmp_path / "file") as two:
            two.write(b"two!")

    with replacing(tmp_path / "file") as one:
        one.write(b"one")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert (tmp_path / "file").read_bytes() == b"two!"
    assert (tmp_path / "file").read_bytes() == b"one"


def test_what_killed_writers_left_of_a_file_is_removed_and_nothing_of_others(tmp_path: Path) -> None:
    names = ("file.10-20.part", "file.11-21.part", "file.more.10-20.part", "other.10-20.part", "file.lock", "file")
    for name in names:
        (tmp_path / name).touch()
    remove_parts_of(tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == set(names[2:])


def test_a_part_that_is_left_bears_the_name_by_which_it_is_removed(tmp_path: Path) -> None:
    with suppress(FileNotFoundError), replacing(tmp_path / "file"):
        remove_parts_of(tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_a_lock_is_waited_for_or_left_to_its_holder(tmp_path: Path) -> None:
    lock, told = tmp_path / "new" / "lock", []

    def hold() -> None:
        with locked(lock, lambda: told.append("waits")):
            told.append("holds")

    with claimed(lock) as held, claimed(lock) as held_too:
        assert (held, held_too) == (True, False)
    with claimed(lock):
        waiting = threading.Thread(target=hold)
        waiting.start()
        while not told:
            time.sleep(0.001)
        assert told == ["waits"]
    waiting.join()
    assert told == ["waits", "holds"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"new"


def test_what_is_no_file_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as file:
        file.write(b"new")
    assert os.read(reader, 9) == b"new"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()


def test_of_what_has_no_end_no_more_is_read_than_a_plan_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device says that it has no bytes."""
    asked: list[int] = []

    class Endless:
        def __enter__(self) -> "Endless":
            return self

        def __exit__(self, *error: object) -> None: ...

        def read(self, size: int = -1) -> bytes:
            asked.append(size)
            return bytes(MAX_BYTES + 1)

    monkeypatch.setattr(Path, "open", lambda *arguments: Endless())
    with pytest.raises(PlanError, match="/dev/zero: has more than 32 MiB"):
        load_plan(Path("/dev/zero"))
    assert asked == [MAX_BYTES + 1]


def test_a_trace_is_read_from_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")  # and never /dev/zero, which would be read to its end
    with pytest.raises(TraceError, match="cannot be read: it is no file of the disk; name another file"):
        load_trace(tmp_path / "link")
