"""The packed store: what is read back is what was packed, and nothing that happens to the file stops a start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from isotherm.experts import mapped
from isotherm.experts import store as store_module
from isotherm.experts.formats import FORMATS
from isotherm.experts.mapped import HUGE_PAGE
from isotherm.experts.model import Model, open_model
from isotherm.experts.pack import pack
from isotherm.experts.store import PackedStore, StoreError
from isotherm.experts.weights import Weights
from support.blocks import GGUF_FORMATS
from support.stores import assert_same, start
from support.tiny import ARCHITECTURES, write_blank_gguf, write_gguf, write_hf

WIDE = {"hidden_size": 256, "intermediate_size": 256}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models span many chunks, the last of them not whole."""
    monkeypatch.setattr(store_module, "CHUNK", 3 << 12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "mixtral", "Q4_0")
    return open_model(path)


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


@pytest.mark.parametrize("stage", ["storing packed weights", "reading packed weights"])
def test_progress_counts_bytes_to_the_end(stage: str, model: Model, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    store, packed = PackedStore(tmp_path, model), pack(model)
    store.save(packed, 2, lambda *step: seen.append(step))
    store.load(2, lambda *step: seen.append(step))
    steps = [(done, total) for name, done, total in seen if name == stage]
    assert len(steps) > 10 and steps == sorted(steps)
    assert steps[-1] == (packed.nbytes, packed.nbytes)


MEASURE = """
import sys
from pathlib import Path
import numpy as np
from isotherm.cpu_kernels.checksum import checksum
from isotherm.experts.model import open_model
from isotherm.experts.store import PackedStore

def memory(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith(field)).split()[1])

store = PackedStore(Path(sys.argv[2]), open_model(sys.argv[1]))
checksum(np.zeros(8, np.uint8))  # loads the compiler
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
