"""Packing whole models: the arena's size, its contents, what is told of it, and the memory that it takes."""

import os
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.layout import KINDS, SPAN
from isotherm.cpu_kernels.reference import unpack
from isotherm.experts.errors import CheckpointError, UnsupportedModelError
from isotherm.experts.formats import FORMATS
from isotherm.experts.model import open_model
from isotherm.experts.pack import PackedMatrix, PackedWeights, pack, packed_size
from safetensors.numpy import load_file, save_file
from support.blocks import GGUF_FORMATS
from support.tiny import ARCHITECTURES, write_blank_gguf, write_gguf, write_hf

WIDE = {"hidden_size": 256, "intermediate_size": 256}


def values(weights: PackedWeights, matrix: PackedMatrix) -> np.ndarray:
    """The numbers of a packed matrix, read through its address."""
    start = matrix.address - weights.arena.ctypes.data
    assert 0 <= start <= weights.nbytes - matrix.nbytes and matrix.address % 64 == 0
    tiles = weights.arena[start : start + matrix.nbytes]
    shape = (matrix.tiles, matrix.units, KINDS[matrix.kind].unit_bytes)
    return unpack(matrix.kind, tiles.reshape(shape), matrix.rows, matrix.columns)


def write(source: str, folder: Path) -> Path:
    """A tiny model in a file or folder."""
    path = folder / ("tiny.gguf" if source == "gguf" else "")
    (write_gguf if source == "gguf" else write_hf)(path, "mixtral")
    return path


@pytest.mark.parametrize("source", ["safetensors", "gguf"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_matrix_and_vector_is_there(architecture: str, source: str, tmp_path: Path) -> None:
    path = tmp_path / ("tiny.gguf" if source == "gguf" else "")
    (write_gguf if source == "gguf" else write_hf)(path, architecture)
    model = open_model(path)
    weights = pack(model)
    for role in model.weights.roles:
        shape = model.weights.shape(role)
        if len(shape) == 1:
            vector = weights.vectors[role]
            np.testing.assert_array_equal(vector[: shape[0]], model.weights.dense(role))
            assert len(vector) % SPAN == 0 and not vector[shape[0] :].any()
        elif len(shape) == 2:
            np.testing.assert_array_equal(values(weights, weights.matrices[role]), model.weights.dense(role))
        else:
            for expert, matrix in enumerate(weights.banks[role]):
                np.testing.assert_array_equal(values(weights, matrix), model.weights.dense_expert(role, expert))
    packed = {*weights.matrices, *weights.banks, *weights.vectors}
    assert packed == set(model.weights.roles)


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_the_size_is_known_before(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "mixtral", name, **(WIDE if FORMATS[name].block > 32 else {}))
    model = open_model(path)
    weights = pack(model)
    matrices = [*weights.matrices.values(), *(matrix for bank in weights.banks.values() for matrix in bank)]
    parts = [*matrices, *weights.vectors.values()]
    assert packed_size(model) == weights.nbytes == sum(part.nbytes for part in parts)
    assert len({matrix.address for matrix in matrices}) == len(matrices)


def test_a_tied_head_is_the_embedding_once(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", tie_word_embeddings=True)
    model = open_model(tmp_path)
    weights = pack(model)
    assert weights.matrices["head"] is weights.matrices["embed"]
    untied = sum(matrix.nbytes for role, matrix in weights.matrices.items() if role != "head")
    untied += sum(vector.nbytes for vector in weights.vectors.values())
    assert weights.nbytes == packed_size(model) == untied


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_what_is_reencoded_is_counted_by_matrix(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "mixtral", name, **(WIDE if FORMATS[name].block > 32 else {}))
    # two layers of q, k, v, o and three matrices for each of four experts; embedding and head
    expected = {} if FORMATS[name].exact else {name: 2 * (4 + 3 * 4) + 2}
    assert pack(open_model(path)).reencoded == Counter(expected)


def test_any_number_of_threads_packs_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen2_moe", "Q4_1")
    model = open_model(path)
    one, many = pack(model, threads=1), pack(model, threads=3)
    np.testing.assert_array_equal(one.arena, many.arena)


def test_progress_counts_bytes_to_the_end(tmp_path: Path) -> None:
    write_hf(tmp_path, "olmoe")
    model = open_model(tmp_path)
    seen: list[tuple[str, int, int]] = []
    pack(model, progress=lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert seen[-1] == ("packing weights", packed_size(model), packed_size(model))


def test_progress_may_stop_it(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama")

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(open_model(tmp_path), threads=2, progress=stop)


@pytest.mark.parametrize("source", ["safetensors", "gguf"])
def test_a_file_that_was_cut_is_told_and_not_read(source: str, tmp_path: Path) -> None:
    model = open_model(write(source, tmp_path))
    file = model.weights.stored("embed").file
    os.truncate(file, file.stat().st_size - 1)  # what is left of its last page can be looked at, more could not
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(file))}: the file was cut to \d+ of \d+ bytes"):
        pack(model)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_is_cut_while_it_is_packed_is_told(threads: int, tmp_path: Path) -> None:
    model = open_model(write("gguf", tmp_path))
    file = model.weights.stored("embed").file

    whole = file.stat().st_size

    def cut(stage: str, done: int, total: int) -> None:
        os.truncate(file, whole - 1)

    # Whether it is found at the next weight, or when the last one is read, depends on which thread is ahead.
    with pytest.raises(CheckpointError, match=r"was (cut|changed)"):
        pack(model, threads, progress=cut)


def test_a_file_that_is_written_to_while_it_is_packed_is_told(tmp_path: Path) -> None:
    model = open_model(write("gguf", tmp_path))
    file = model.weights.stored("embed").file

    def touch(stage: str, done: int, total: int) -> None:
        if done == total:
            os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))

    with pytest.raises(CheckpointError, match="was changed while it was read; start again"):
        pack(model, progress=touch)


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_file_that_is_replaced_or_removed_lives_on(how: str, tmp_path: Path) -> None:
    file = write("gguf", tmp_path)
    expected, model = pack(open_model(file)).arena, open_model(file)
    (tmp_path / "other").write_bytes(b"shorter")
    if how == "replaced":
        os.replace(tmp_path / "other", file)
    else:
        file.unlink()
    np.testing.assert_array_equal(pack(model).arena, expected)


@pytest.mark.parametrize("rows", [700, 2100])
def test_a_matrix_of_several_slabs_has_no_seam(rows: int, tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", intermediate_size=rows, hidden_size=1024, num_hidden_layers=1)
    model = open_model(tmp_path)
    weights = pack(model)
    role = "layers.0.up"
    np.testing.assert_array_equal(values(weights, weights.matrices[role]), model.weights.dense(role))


def test_experts_of_two_kinds_are_refused_before_anything_is_packed(tmp_path: Path) -> None:
    write_hf(tmp_path, "mixtral")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if "experts.2." in name)
    save_file({**tensors, name: tensors[name].astype(np.float16)}, file)
    with pytest.raises(
        UnsupportedModelError, match=rf"{re.escape(name)}.* is F16 but another expert's is F32; convert"
    ):
        packed_size(open_model(tmp_path))


MEASURE = """
import sys
import tracemalloc
from pathlib import Path
from isotherm.experts.model import open_model
from isotherm.experts.pack import pack

def memory(field):
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith(field)).split()[1])

pack(open_model(sys.argv[1]), threads=2)  # compiles what is needed
before = memory("VmRSS")
weights = pack(open_model(sys.argv[2]), threads=2)
print(weights.nbytes, memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q5_K", "BF16"])
def test_packing_takes_little_more_memory_than_what_it_packs(name: str, tmp_path: Path) -> None:
    small, large = tmp_path / "small.gguf", tmp_path / "large.gguf"
    write_blank_gguf(small, "llama", name, **WIDE)
    write_blank_gguf(large, "llama", name, hidden_size=2048, intermediate_size=12288)
    program = [sys.executable, "-c", MEASURE, str(small), str(large)]
    packed, growth = map(int, subprocess.run(program, capture_output=True, check=True).stdout.split())
    assert packed > 99e6
    # Slabs of a million elements on each of two threads: the same for any model, so less than 15 % of a large one.
    assert growth < 1.02 * packed + 40e6


def test_the_size_is_known_without_reading_a_weight(tmp_path: Path) -> None:
    """Rows of q and k that must be put in order would be a copy."""
    path = tmp_path / "large.gguf"
    write_blank_gguf(path, "mixtral", "Q8_0", hidden_size=2048)
    model = open_model(path)
    tracemalloc.start()
    try:
        size = packed_size(model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size / 100
