"""The packed store and the disk: who writes, how much room there must be, and what is left behind."""

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from isotherm.experts import store as store_module
from isotherm.experts.mapped import HUGE_PAGE
from isotherm.experts.model import Model, open_model
from isotherm.experts.pack import pack
from isotherm.experts.store import NOTE, PackedStore, StoreBusyError, StoreError
from support.stores import assert_same, start
from support.tiny import write_gguf

SPARE = 2 << 30


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models span many chunks, the last of them not whole."""
    monkeypatch.setattr(store_module, "CHUNK", 3 << 12)


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> int:
    """Stores leave as much free as they do outside of tests."""
    monkeypatch.setattr(store_module, "SPARE", SPARE)
    return SPARE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "mixtral", "Q4_0")
    return open_model(path)


def test_two_writers_at_once_make_one_sound_file(model: Model, tmp_path: Path) -> None:
    packed, met = pack(model), []

    def write_too(stage: str, done: int, total: int) -> None:
        with pytest.raises(StoreBusyError, match="another process is writing it"):
            PackedStore(tmp_path, model).save(packed)
        met.append(done)

    PackedStore(tmp_path, model).save(packed, progress=write_too)
    assert met
    assert_same(PackedStore(tmp_path, model).load(), packed)


KILLED = """
import os, pathlib, signal, sys
from isotherm.experts import store
from isotherm.experts.model import open_model
from isotherm.experts.pack import pack
def kill(stage, done, total):
    os.kill(os.getpid(), signal.SIGKILL)
store.SPARE = 0
model = open_model(sys.argv[1])
store.PackedStore(pathlib.Path(sys.argv[2]), model).save(pack(model), progress=kill)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next(model: Model, tmp_path: Path) -> None:
    path = PackedStore(tmp_path, model).path
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", KILLED, model.checkpoint.path, tmp_path]
    assert subprocess.run(program, env=environment, check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("*.part")
    assert left.name.startswith(path.name) and not path.exists()
    left_by_another = tmp_path / "another.packed.part"
    shutil.copy(left, left_by_another)
    weights, notes = start(model, tmp_path)
    assert notes == []
    assert not left.exists() and not left_by_another.exists()
    assert_same(PackedStore(tmp_path, model).load(), weights)


def test_a_disk_that_fills_up_stops_no_start(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def fill_up(file: int, data: bytes, offset: int) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(len(data) // 2)
        return len(data) // 2

    monkeypatch.setattr(os, "pwrite", fill_up)
    weights, notes = start(model, tmp_path)
    assert_same(weights, pack(model))
    assert [name for name, _ in notes] == ["packed_store_not_written"]
    assert "No space left on device" in notes[0][1]
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_the_disk_is_waited_for_again_and_again(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that stopping has not gigabytes to wait for."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size - HUGE_PAGE))
    monkeypatch.setattr(store_module, "SYNCED", 4 * store_module.CHUNK)
    packed = pack(model)
    PackedStore(tmp_path, model).save(packed)
    assert set(range(4 * store_module.CHUNK, packed.nbytes, 4 * store_module.CHUNK)) <= set(synced)


def test_its_own_older_version_makes_room_first(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, packed = PackedStore(tmp_path, model), pack(model)
    store.path.write_bytes(bytes(packed.nbytes))
    (tmp_path / "a.packed").write_bytes(bytes(1000))

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(total=0, free=0 if store.path.exists() else packed.nbytes)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    store.save(packed)
    assert (tmp_path / "a.packed").exists()
    assert_same(store.load(), packed)


def test_the_place_of_the_checkpoint_is_noted(model: Model, tmp_path: Path) -> None:
    start(model, tmp_path)
    note = PackedStore(tmp_path, model).path.with_suffix(NOTE)
    assert note.read_bytes() == os.fsencode(model.checkpoint.path)
    note.write_text("where it was once")
    start(model, tmp_path)
    assert note.read_bytes() == os.fsencode(model.checkpoint.path)


def test_a_folder_that_cannot_be_made_stops_no_start(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    weights, notes = start(model, tmp_path / "file" / "packed")
    assert_same(weights, pack(model))
    assert notes[-1][0] == "packed_store_not_written"


def test_an_interrupted_save_leaves_no_file(model: Model, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PackedStore(tmp_path, model).save(pack(model), threads=2, progress=interrupt)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.usefixtures("spare")
def test_other_models_make_room_by_their_last_use(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, used in (("a", 2), ("b", 1), ("c", 3)):
        (tmp_path / f"{name}.packed").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{name}.packed", (used, used))
        (tmp_path / f"{name}.model").write_bytes(b"model")
    packed = pack(model)

    def usage(folder: Path) -> SimpleNamespace:
        others = sum(1000 for path in tmp_path.glob("?.packed"))
        return SimpleNamespace(total=100_000, free=5_000 + packed.nbytes + 1500 - others)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    PackedStore(tmp_path, model).save(packed)
    assert sorted(path.name for path in tmp_path.glob("?.*")) == ["c.model", "c.packed"]
    assert [f"{name}.packed: it makes room" in caplog.text for name in "abc"] == [True, True, False]
    assert_same(PackedStore(tmp_path, model).load(), packed)


@pytest.mark.usefixtures("spare")
def test_a_full_disk_is_told_before_a_byte_is_written(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=100 << 20, free=1000))
    (tmp_path / "a.packed").write_bytes(bytes(1000))  # too small to make room
    with pytest.raises(StoreError, match=r"needs \d MiB more of free space"):
        PackedStore(tmp_path, model).save(pack(model), progress=lambda *step: pytest.fail("it writes"))
    assert (tmp_path / "a.packed").exists()


def test_of_a_large_disk_no_more_stays_free_than_of_a_small_one(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    packed = pack(model)
    usage = SimpleNamespace(total=10**15, free=packed.nbytes + spare - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(StoreError, match="more of free space"):
        PackedStore(tmp_path, model).save(packed)
    usage.free += 1
    PackedStore(tmp_path, model).save(packed)
    assert_same(PackedStore(tmp_path, model).load(), packed)


def test_reading_moves_a_store_behind_those_not_used(model: Model, tmp_path: Path) -> None:
    start(model, tmp_path)
    path = PackedStore(tmp_path, model).path
    os.utime(path, (1, 1))
    start(model, tmp_path)
    assert path.stat().st_mtime > 1
