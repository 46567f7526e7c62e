"""The packed store as the daemon uses it: what a start does, what is written meanwhile, and how to do without."""

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.cpu_kernels.seating import Seating
from isotherm.daemon.assembly import Assembly, assemble
from isotherm.daemon.config import Config
from isotherm.daemon.events import EventLog
from isotherm.daemon.housekeeping import tidy
from isotherm.daemon.pack_cache import PackCache
from isotherm.daemon.paths import packed_folder
from isotherm.experts import store as store_module
from isotherm.experts.model import Model, open_model
from isotherm.experts.pack import pack
from isotherm.experts.store import PackedStore
from support.machines import nodes_here
from support.stores import assert_same
from support.tiny import write_gguf

PATIENCE_S = 20.0


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A tiny model, a cache folder of its own for what is not a kernel, and stores of many chunks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(store_module, "CHUNK", 3 << 12)
    write_gguf(tmp_path / "tiny.gguf", "mixtral", "Q4_0")
    return Config(model=tmp_path / "tiny.gguf", threads=1, context=32)


@pytest.fixture
def model(config: Config) -> Model:
    assert config.model is not None
    return open_model(config.model)


@pytest.fixture
def cache(model: Model) -> PackCache:
    """After the first start of the model."""
    cache = PackCache(PackedStore(packed_folder(), model), EventLog())
    cache.load_or_pack(1)
    return cache


def start(config: Config) -> tuple[Assembly, set[str]]:
    """A daemon that was loaded, served until all was written, and was closed again; the stages of its load."""
    stages = set()
    assembly = assemble(config, lambda stage, done, total: stages.add(stage))
    with assembly.cache.writing() if assembly.cache else nullcontext():
        join_writer()
    assembly.runner.close()
    return assembly, stages


def join_writer() -> None:
    for thread in writers():
        thread.join(PATIENCE_S)
    assert not any(writers())


def writers() -> Iterator[threading.Thread]:
    return (thread for thread in threading.enumerate() if thread.name == "isotherm-store")


def files() -> set[str]:
    return {path.suffix for path in packed_folder().iterdir()}


def test_the_first_start_writes_after_the_load_and_the_second_packs_nothing(config: Config) -> None:
    first_assembly, first = start(config)
    assert first == {"packing weights", "testing kernels", "compiling kernels"}
    assert first_assembly.status()["pack_cache"]["state"] == "written"
    assembly, second = start(config)
    assert second == {"reading packed weights", "testing kernels", "compiling kernels"}
    assert assembly.status()["pack_cache"]["state"] == "read"
    assert assembly.status()["events"]["counts"] == {}


def test_a_damaged_store_is_told_by_the_status(config: Config, tmp_path: Path) -> None:
    start(config)
    (file,) = (tmp_path / "cache" / "isotherm" / "packed").glob("*.packed")
    file.write_bytes(b"")
    assembly, stages = start(config)
    assert "packing weights" in stages
    (event,) = assembly.status()["events"]["recent"]
    assert event["name"] == "packed_store_rejected"
    assert "it is cut short" in event["detail"]


def test_without_the_cache_no_file_is_kept(config: Config) -> None:
    assembly, stages = start(replace(config, pack_cache=False))
    assert stages == {"packing weights", "testing kernels", "compiling kernels"}
    assert assembly.status()["pack_cache"] is None
    assert not packed_folder().exists()


class SlowDisk:
    """Writes some chunks, then waits until the writer is told to stop."""

    def __init__(self, cache: PackCache, monkeypatch: pytest.MonkeyPatch, chunks: int = 3) -> None:
        self.reached, self._left, self._cache, self._write = threading.Event(), chunks, cache, os.pwrite
        monkeypatch.setattr(os, "pwrite", self)

    def __call__(self, file: int, data: Any, offset: int) -> int:
        self._left -= 1
        if self._left < 0:
            self.reached.set()
            assert self._cache._stop.wait(PATIENCE_S)
        return self._write(file, data, offset)


def test_the_end_of_the_daemon_stops_the_writing(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(cache, monkeypatch)
    with cache.writing():
        assert disk.reached.wait(PATIENCE_S)
    assert not any(writers())
    assert cache.status()["state"] == "stopped"
    assert files() == {".lock"}


def test_the_status_tells_how_far_the_writing_is(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(cache, monkeypatch, chunks=3)
    before = cache.status()
    with cache.writing():
        assert disk.reached.wait(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while (status := cache.status())["done_bytes"] < 3 * store_module.CHUNK:
            assert time.monotonic() < end
            time.sleep(0.001)
    assert before["state"] == "to write" and before["done_bytes"] == 0
    assert status["state"] == "writing"
    assert status["done_bytes"] == 3 * store_module.CHUNK < status["total_bytes"] == before["total_bytes"]


def test_the_writer_copies_nothing(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes is the arena that the kernels read."""
    sources = set()
    disk, write = SlowDisk(cache, monkeypatch), os.pwrite

    def note(file: int, data: Any, offset: int) -> int:
        sources.add(np.frombuffer(data, np.uint8).ctypes.data)
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", note)
    assert cache._weights is not None
    arena = cache._weights.arena.ctypes.data
    with cache.writing():
        assert disk.reached.wait(PATIENCE_S)
    assert sources == {arena + i * store_module.CHUNK for i in range(len(sources))}


def test_a_disk_that_fills_up_is_an_event_while_serving_goes_on(
    cache: PackCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill_up(file: int, data: Any, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fill_up)
    with cache.writing():
        join_writer()
    assert cache.status()["state"] == "not written"
    assert files() == {".lock"}
    assert "packed_store_not_written" in caplog.text and "No space left on device" in caplog.text


def test_a_second_daemon_leaves_the_writing_to_the_first(
    cache: PackCache, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, events = SlowDisk(cache, monkeypatch), EventLog()
    second = PackCache(PackedStore(packed_folder(), model), events)
    second.load_or_pack(1)
    with cache.writing():
        assert disk.reached.wait(PATIENCE_S)
        second.write()
        tidy()  # the part of a writer that lives stays
        assert files() == {".lock", ".part"}
    assert second.status()["state"] == "written by another process"
    assert events.recent() == ()


def test_the_writer_has_the_least_priority(cache: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(file: int) -> None:
        seen.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), os.getpriority(os.PRIO_PROCESS, 0)))

    monkeypatch.setattr(store_module, "SYNCED", store_module.CHUNK)
    monkeypatch.setattr(os, "fdatasync", look)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    with cache.writing():
        join_writer()
    assert {writer for writer, _ in seen} == {19}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_the_weights_of_several_memory_nodes_are_written_as_they_lie(model: Model) -> None:
    seating = Seating(2, nodes_here(2))
    cache = PackCache(PackedStore(packed_folder(), model), EventLog())
    weights = cache.load_or_pack(seating)
    with cache.writing():
        join_writer()
    np.testing.assert_array_equal(PackedStore(packed_folder(), model).load(seating).arena, weights.arena)


def test_the_log_says_where_the_weights_are_kept(cache: PackCache, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with cache.writing():
        join_writer()
    assert f"the packed weights are kept in {cache.status()['path']}" in caplog.text


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from isotherm.daemon.events import EventLog
from isotherm.daemon.pack_cache import PackCache
from isotherm.experts import store
from isotherm.experts.model import open_model

store.CHUNK, store.SPARE = 3 << 12, 0
write, chunks = os.pwrite, []
def die(file, data, offset):
    chunks.append(offset)
    if len(chunks) > 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return write(file, data, offset)
os.pwrite = die
cache = PackCache(store.PackedStore(Path(sys.argv[2]), open_model(sys.argv[1])), EventLog())
cache.load_or_pack(1)
with cache.writing():
    threading.Event().wait()
"""


def test_what_a_daemon_killed_while_it_writes_leaves_is_removed_by_the_next(config: Config, model: Model) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", KILLED, str(config.model), str(packed_folder())]
    done = subprocess.run(program, env=environment, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert files() == {".lock", ".part"}
    tidy()  # what every daemon does, whatever model it serves
    assert files() == {".lock"}
    _, stages = start(config)
    assert "packing weights" in stages
    assert_same(PackedStore(packed_folder(), model).load(), pack(model))
