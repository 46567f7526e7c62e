"""The packed store: what is read back is what was packed, and nothing that happens to the file stops a start."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from isotherm.experts import mapped
from isotherm.experts import store as store_module
from isotherm.experts.formats import FORMATS
from isotherm.experts.mapped import HUGE_PAGE
from isotherm.experts.model import Model, open_model
from isotherm.experts.pack import PackedMatrix, PackedWeights, pack
from isotherm.experts.store import PackedStore, StoreError, stored_weights
from isotherm.experts.weights import Weights
from support.blocks import GGUF_FORMATS
from support.tiny import ARCHITECTURES, write_blank_gguf, write_gguf, write_hf

WIDE = {"hidden_size": 256, "intermediate_size": 256}
Notes = list[tuple[str, str]]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models span many chunks, the last of them not whole."""
    monkeypatch.setattr(store_module, "CHUNK", 3 << 12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "mixtral", "Q4_0")
    return open_model(path)


def start(model: Model, folder: Path, threads: int = 1) -> tuple[PackedWeights, Notes]:
    """What a start of the daemon does, and what it notes."""
    notes: Notes = []
    return stored_weights(model, folder, threads, note=lambda *note: notes.append(note)), notes


def places(weights: PackedWeights) -> dict[str, object]:
    """All parts of packed weights, with offsets in the place of addresses."""
    base = weights.arena.ctypes.data

    def place(matrix: PackedMatrix) -> tuple[object, ...]:
        return matrix.kind, matrix.rows, matrix.columns, matrix.address - base

    return {
        "matrices": {role: place(matrix) for role, matrix in weights.matrices.items()},
        "banks": {role: [place(matrix) for matrix in bank] for role, bank in weights.banks.items()},
        "vectors": {role: vector.tolist() for role, vector in weights.vectors.items()},
        "reencoded": weights.reencoded,
    }


def assert_same(got: PackedWeights, expected: PackedWeights) -> None:
    np.testing.assert_array_equal(got.arena, expected.arena)
    assert places(got) == places(expected)


def map_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_PROBES", 0)  # no page is asked for its size


def read_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "map_huge", lambda file, offset, size: None)


WAYS = {"mapped": map_always, "read": read_always}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", ["safetensors", "gguf"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_is_read_is_what_was_packed(
    architecture: str, source: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WAYS[way](monkeypatch)
    path = tmp_path / ("tiny.gguf" if source == "gguf" else "tiny")
    (write_gguf if source == "gguf" else write_hf)(path, architecture)
    model = open_model(path)
    packed, store = pack(model), PackedStore(tmp_path / "packed", model)
    store.save(packed)
    assert_same(store.load(), packed)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_every_format_survives(name: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "mixtral", name, **(WIDE if FORMATS[name].block > 32 else {}))
    model = open_model(tmp_path / "tiny.gguf")
    packed, store = pack(model), PackedStore(tmp_path / "packed", model)
    store.save(packed, threads=3)
    assert_same(store.load(threads=3), packed)


def test_the_second_start_reads_no_weights_of_the_checkpoint(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, notes = start(model, tmp_path)

    def refuse(*arguments: object) -> None:
        raise AssertionError("the checkpoint's weights are read")

    for name in ("tensor", "dense"):
        monkeypatch.setattr(Weights, name, refuse)
    second, more_notes = start(model, tmp_path)
    assert_same(second, first)
    assert notes == more_notes == []


@pytest.mark.parametrize("way", WAYS)
def test_weights_in_use_outlive_the_file(
    way: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WAYS[way](monkeypatch)
    start(model, tmp_path)
    weights, _ = start(model, tmp_path)
    PackedStore(tmp_path, model).path.unlink()
    assert_same(weights, pack(model))


def flip(at: int) -> Callable[[Path], None]:
    """Change a bit of the byte at a position; from the end if it is negative."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


def resize(by: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, path.stat().st_size + by)


DAMAGES = {
    "magic": (flip(0), "it is not a packed store"),
    "version": (flip(8), "it was packed by another version"),
    "fingerprint": (flip(16), "it was packed from another checkpoint"),
    "layout": (flip(79), "it was packed by another version"),
    "size": (flip(80), "its size is wrong"),
    "a chunk's checksum": (flip(88), "the checksum of its head is wrong"),
    "first byte of the arena": (flip(HUGE_PAGE), "the checksum of its chunk 0 is wrong"),
    "last byte of the arena": (flip(-1), r"the checksum of its chunk \d\d is wrong"),
    "a byte missing": (resize(-1), "its size is wrong"),
    "a byte too many": (resize(1), "its size is wrong"),
    "half of the head": (lambda path: os.truncate(path, 50), "it is cut short"),
    "nothing at all": (lambda path: os.truncate(path, 0), "it is cut short"),
    "nothing but zeros": (lambda path: path.write_bytes(bytes(path.stat().st_size)), "it is not a packed store"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_store_is_told_and_written_again(
    damage: str, way: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WAYS[way](monkeypatch)
    inflict, reason = DAMAGES[damage]
    expected, _ = start(model, tmp_path)
    path = PackedStore(tmp_path, model).path
    sound = path.read_bytes()
    inflict(path)
    with pytest.raises(StoreError, match=reason):
        PackedStore(tmp_path, model).load()
    weights, notes = start(model, tmp_path, threads=2)
    assert_same(weights, expected)
    assert [name for name, _ in notes] == ["packed_store_rejected"]
    assert path.read_bytes() == sound


def test_a_file_cut_while_it_is_read_is_told(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(model, tmp_path)
    store, read = PackedStore(tmp_path, model), os.preadv

    def cut_after_the_head(file: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= HUGE_PAGE:
            os.truncate(store.path, HUGE_PAGE + 20_000)
        return read(file, buffers, offset)

    read_always(monkeypatch)
    monkeypatch.setattr(os, "preadv", cut_after_the_head)
    with pytest.raises(StoreError, match="it is cut short"):
        store.load()


def test_the_store_of_another_checkpoint_is_not_taken(model: Model, tmp_path: Path) -> None:
    write_gguf(tmp_path / "other.gguf", "mixtral", "Q4_0", seed=5)
    other = open_model(tmp_path / "other.gguf")
    start(other, tmp_path)
    shutil.copy(PackedStore(tmp_path, other).path, PackedStore(tmp_path, model).path)
    weights, notes = start(model, tmp_path)
    assert_same(weights, pack(model))
    assert "it was packed from another checkpoint" in notes[0][1]


def test_a_store_of_other_sources_is_replaced(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source.py").write_text("changed")
    with monkeypatch.context() as earlier:
        earlier.setattr(store_module, "_sources", lambda: [tmp_path / "source.py"])
        start(model, tmp_path)
    _, notes = start(model, tmp_path)
    assert "it was packed by another version" in notes[0][1]
    assert start(model, tmp_path)[1] == []
    assert [path.name for path in tmp_path.glob("*.packed")] == [PackedStore(tmp_path, model).path.name]


def test_two_writers_at_once_make_one_sound_file(model: Model, tmp_path: Path) -> None:
    packed, second = pack(model), []

    def start_second(stage: str, done: int, total: int) -> None:
        if not second:
            second.append(start(model, tmp_path))

    PackedStore(tmp_path, model).save(packed, progress=start_second)
    weights, notes = second[0]
    assert_same(weights, packed)
    assert [name for name, _ in notes] == ["packed_store_not_written"]
    assert "another process is writing it" in notes[0][1]
    assert_same(PackedStore(tmp_path, model).load(), packed)


KILLED = """
import os, pathlib, signal, sys
from isotherm.experts.model import open_model
from isotherm.experts.store import stored_weights
def kill(stage, done, total):
    if stage.startswith("storing"): os.kill(os.getpid(), signal.SIGKILL)
stored_weights(open_model(sys.argv[1]), pathlib.Path(sys.argv[2]), 1, kill)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next(model: Model, tmp_path: Path) -> None:
    path = PackedStore(tmp_path, model).path
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", KILLED, model.checkpoint.path, tmp_path]
    assert subprocess.run(program, env=environment, check=False).returncode == -signal.SIGKILL
    left = path.with_name(path.name + ".part")
    assert left.exists() and not path.exists()
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


def test_other_models_make_room_by_their_last_use(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, used in (("a", 2), ("b", 1), ("c", 3)):
        (tmp_path / f"{name}.packed").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{name}.packed", (used, used))
    packed = pack(model)

    def usage(folder: Path) -> SimpleNamespace:
        others = sum(1000 for path in tmp_path.glob("?.packed"))
        return SimpleNamespace(total=100_000, free=5_000 + packed.nbytes + 1500 - others)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    PackedStore(tmp_path, model).save(packed)
    assert [path.name for path in tmp_path.glob("?.packed")] == ["c.packed"]
    assert_same(PackedStore(tmp_path, model).load(), packed)


def test_a_full_disk_is_told_before_a_byte_is_written(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=100 << 20, free=1000))
    with pytest.raises(StoreError, match=r"needs \d MiB more of free space"):
        PackedStore(tmp_path, model).save(pack(model), progress=lambda *step: pytest.fail("it writes"))


def test_reading_moves_a_store_behind_those_not_used(model: Model, tmp_path: Path) -> None:
    start(model, tmp_path)
    path = PackedStore(tmp_path, model).path
    os.utime(path, (1, 1))
    start(model, tmp_path)
    assert path.stat().st_mtime > 1


@pytest.mark.parametrize("stage", ["storing packed weights", "reading packed weights"])
def test_progress_counts_bytes_to_the_end(stage: str, model: Model, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    for _ in range(2):
        weights = stored_weights(model, tmp_path, 2, lambda *step: seen.append(step))
    steps = [(done, total) for name, done, total in seen if name == stage]
    assert len(steps) > 10 and steps == sorted(steps)
    assert steps[-1] == (weights.nbytes, weights.nbytes)


MEASURE = """
import sys
from pathlib import Path
from isotherm.experts.model import open_model
from isotherm.experts.store import PackedStore

def memory(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith(field)).split()[1])

store = PackedStore(Path(sys.argv[2]), open_model(sys.argv[1]))
before = memory("VmRSS")
weights = store.load(threads=2)
print(weights.nbytes, memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_reading_takes_no_more_memory_than_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # chunks as they are
    path = tmp_path / "large.gguf"
    write_blank_gguf(path, "llama", "Q8_0", hidden_size=2048, intermediate_size=4096)
    start(open_model(path), tmp_path)
    program = [sys.executable, "-c", MEASURE, str(path), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(program, env=environment, capture_output=True, check=True)
    packed, growth = map(int, done.stdout.split())
    assert packed > 50e6
    assert growth < 1.02 * packed + 20e6
