import random
import struct
from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.checkpoint import open_checkpoint, release
from isotherm.experts.errors import CheckpointError, ModelError, UnsupportedModelError
from isotherm.experts.formats import format_of
from support.gguf_bytes import ARRAY, SCALAR_CODES, STRING, U32, gguf_file, key, string, tensor

F32, Q4_0, F64 = 0, 2, 28
ARCHITECTURE = key("general.architecture", STRING, "llama")
FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)
DATA = FLOATS.tobytes()


def write(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def sound_file() -> bytes:
    vocabulary = key("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "bc", "é"]))
    keys = [ARCHITECTURE, key("llama.block_count", U32, 2), vocabulary]
    return gguf_file(keys, [tensor("weight", (3, 4), F32, 0)], DATA)


def test_tensor_is_a_read_only_view_in_its_logical_shape(tmp_path):
    checkpoint = open_checkpoint(write(tmp_path, sound_file()))
    found = checkpoint.tensors["weight"]
    assert (found.shape, found.format, found.data.shape) == ((3, 4), "F32", (3, 16))
    np.testing.assert_array_equal(found.data.view(np.float32), FLOATS)
    assert not found.data.flags.writeable and not found.data.flags.owndata


def test_all_kinds_of_metadata_are_read(tmp_path):
    numbers = {kind: key(f"k{kind}", kind, 1) for kind in SCALAR_CODES}
    lists = {kind: key(f"a{kind}", ARRAY, (kind, [0, 1, 1])) for kind in SCALAR_CODES}
    texts = [key("text", STRING, "grün"), key("texts", ARRAY, (STRING, ["x", ""])), key("none", ARRAY, (U32, []))]
    metadata = open_checkpoint(write(tmp_path, gguf_file([*numbers.values(), *lists.values(), *texts]))).metadata
    assert all(metadata[f"k{kind}"] == 1 and metadata[f"a{kind}"] == [0, 1, 1] for kind in SCALAR_CODES)
    assert metadata["k7"] is True
    assert (metadata["text"], metadata["texts"], metadata["none"]) == ("grün", ["x", ""], [])


def test_version_2_is_read(tmp_path):
    assert open_checkpoint(write(tmp_path, gguf_file([ARCHITECTURE], version=2))).metadata


def one_tensor(shape=(3, 4), kind=F32, offset=0, data=DATA, **rest) -> bytes:
    return gguf_file([ARCHITECTURE], [tensor("weight", shape, kind, offset)], data, **rest)


LONG_STRING = struct.pack("<Q", 1 << 63)
BROKEN = {
    "wrong magic": (one_tensor(magic=b"GGML"), "not a GGUF file"),
    "another kind of file": (b"PK\x03\x04 some archive", "not a GGUF file"),
    "zero length": (b"", "empty"),
    "only the magic": (b"GGUF", "past the end"),
    "tensor count beyond the file": (one_tensor(counts=(2, 1)), "tensor '' has 0 dimensions"),
    "absurd tensor count": (one_tensor(counts=(1 << 60, 1)), "tensors, more than the limit"),
    "absurd key count": (one_tensor(counts=(1, 1 << 62)), "keys, more than the limit"),
    "string of 2^63 bytes": (gguf_file([LONG_STRING]), "bytes in a string"),
    "string beyond the file": (gguf_file([struct.pack("<Q", 5000)]), "past the end"),
    "array of 2^62 elements": (gguf_file([string("k") + struct.pack("<IIQ", ARRAY, U32, 1 << 62)]), "'k' claims"),
    "array beyond the file": (gguf_file([string("k") + struct.pack("<IIQ", ARRAY, U32, 1000)]), "'k' runs past"),
    "array of strings beyond the file": (
        gguf_file([string("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + string("a") + struct.pack("<Q", 5000)]),
        "'k' runs past",
    ),
    "string of 2^63 bytes in an array": (
        gguf_file([string("k") + struct.pack("<IIQ", ARRAY, STRING, 2) + string("a") + LONG_STRING]),
        "'k' claims",
    ),
    "array of strings without a length": (
        gguf_file([string("k") + struct.pack("<IIQ", ARRAY, STRING, 3) + string("a")]),
        "'k' runs past",
    ),
    "array of arrays": (gguf_file([string("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]), "'k' has the unknown value"),
    "unknown value type": (gguf_file([string("k") + struct.pack("<I", 99)]), "'k' has the unknown value type 99"),
    "key twice": (gguf_file([ARCHITECTURE, ARCHITECTURE]), "'general.architecture' appears twice"),
    "tensor twice": (gguf_file([], [tensor("w", (1,), F32, 0), tensor("w", (1,), F32, 32)], bytes(64)), "same name"),
    "no dimensions": (one_tensor(shape=()), "'weight' has 0 dimensions"),
    "five dimensions": (one_tensor(shape=(1,) * 5), "'weight' has 5 dimensions"),
    "empty dimension": (one_tensor(shape=(3, 0)), "'weight' has the impossible shape"),
    "sizes that overflow": (one_tensor(shape=(1 << 40, 1 << 40)), "'weight'"),
    "sizes that overflow to zero": (one_tensor(shape=(1 << 32, 1 << 32)), "'weight'"),
    "offset beyond the end": (one_tensor(offset=1 << 20), "'weight'"),
    "offset near 2^64": (one_tensor(offset=(1 << 64) - 32), "'weight'"),
    "unaligned offset": (one_tensor(offset=4, data=bytes(64)), "'weight' is not aligned"),
    "data cut": (one_tensor(data=DATA[:-1]), "ends 1 bytes beyond the end"),
    "rows of half a block": (one_tensor(shape=(1, 48), kind=Q4_0), "'weight' has rows of 48"),
    "overlapping tensors": (
        gguf_file([], [tensor("a", (16,), F32, 0), tensor("b", (1,), F32, 32)], bytes(96)),
        "'a' and 'b' overlap",
    ),
    "zero alignment": (gguf_file([key("general.alignment", U32, 0)]), "general.alignment"),
    "odd alignment": (gguf_file([key("general.alignment", U32, 48)]), "general.alignment"),
    "textual alignment": (gguf_file([key("general.alignment", STRING, "32")]), "general.alignment"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_one_clear_error(tmp_path, name):
    content, problem = BROKEN[name]
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write(tmp_path, content))
    assert problem in str(caught.value)
    assert "model.gguf" in str(caught.value)
    assert "download or convert it again" in str(caught.value)


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000])
def test_other_versions_and_byte_orders_are_refused_with_the_remedy(tmp_path, version):
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf: .*convert"):
        open_checkpoint(write(tmp_path, one_tensor(version=version)))


def test_truncation_anywhere_is_found(tmp_path):
    content = sound_file()
    for length in range(len(content)):
        with pytest.raises(CheckpointError, match=r"model\.gguf"):
            open_checkpoint(write(tmp_path, content[:length]))


def test_random_damage_never_escapes_as_another_error(tmp_path):
    rng, content = random.Random(0), sound_file()
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        try:
            open_checkpoint(write(tmp_path, bytes(damaged)))
        except ModelError as error:
            assert "model.gguf" in str(error)


def test_unknown_format_is_refused_only_when_it_is_asked_for(tmp_path):
    records = [tensor("known", (1, 32), F64, 0), tensor("new", (1, 4), 4711, 256)]
    checkpoint = open_checkpoint(write(tmp_path, gguf_file([ARCHITECTURE], records, bytes(512))))
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf: tensor 'known' has the format F64.*use.*Q4_0"):
        format_of(checkpoint.tensors["known"])
    with pytest.raises(UnsupportedModelError, match=r"tensor 'new' has the format type 4711"):
        format_of(checkpoint.tensors["new"])


def write_parts(folder: Path, numbers=(0, 1), count: int = 2, total: int = 2, name: str = "weight") -> list[Path]:
    paths = []
    for number in numbers:
        keys = [key("split.no", 2, number), key("split.count", 2, count), key("split.tensors.count", 5, total)]
        if number == 0:
            keys.append(ARCHITECTURE)
        record = tensor(f"{name}.{number}" if name == "weight" else name, (3, 4), F32, 0)
        content = gguf_file(keys, [record], DATA)
        paths.append(write(folder, content, f"big-{number + 1:05d}-of-{count:05d}.gguf"))
    return paths


@pytest.mark.parametrize("named", [0, 1])
def test_any_part_of_a_split_file_opens_all(tmp_path, named):
    parts = write_parts(tmp_path)
    checkpoint = open_checkpoint(parts[named])
    assert {name: found.file for name, found in checkpoint.tensors.items()} == {
        "weight.0": parts[0],
        "weight.1": parts[1],
    }
    assert checkpoint.metadata["general.architecture"] == "llama"


def test_missing_part_is_named(tmp_path):
    parts = write_parts(tmp_path, numbers=(1,))
    with pytest.raises(CheckpointError, match=r"big-00001-of-00002\.gguf is missing.*download all 2 parts"):
        open_checkpoint(parts[0])


def test_renamed_part_is_refused(tmp_path):
    path = write_parts(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CheckpointError, match=r"renamed\.gguf: key 'split.count' says 2 parts but 1 were found"):
        open_checkpoint(path)


def test_parts_that_hold_the_same_tensor_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"tensor 'same' is also in .*00001-of-00002"):
        open_checkpoint(write_parts(tmp_path, name="same")[0])


def test_parts_with_too_few_tensors_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"2 tensors found, 'split.tensors.count' says 3"):
        open_checkpoint(write_parts(tmp_path, total=3)[0])


@pytest.mark.parametrize(
    ("name", "error", "remedy"),
    [
        ("missing.gguf", CheckpointError, "no such file"),
        ("weights.bin", UnsupportedModelError, "name a .gguf file"),
        ("folder", CheckpointError, "name the .gguf file to open"),
    ],
)
def test_what_is_no_model_file_is_refused(tmp_path, name, error, remedy):
    (tmp_path / "weights.bin").write_bytes(b"pickle")
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", sound_file())
    with pytest.raises(error, match=remedy) as caught:
        open_checkpoint(tmp_path / name)
    assert name in str(caught.value)


def test_a_path_that_cannot_be_looked_at_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be read .*check the path and its permissions"):
        open_checkpoint(tmp_path / ("x" * 5000 + ".gguf"))


def test_fingerprint_is_the_same_at_another_path(tmp_path):
    first = open_checkpoint(write(tmp_path, sound_file(), "a.gguf"))
    second = open_checkpoint(write(tmp_path, sound_file(), "b.gguf"))
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("damage", ["data", "shape", "name", "length"])
def test_fingerprint_follows_the_content(tmp_path, damage):
    shape, name, data = (3, 4), "weight", DATA
    if damage == "data":
        data = (FLOATS + 1).tobytes()
    elif damage == "shape":
        shape = (4, 3)
    elif damage == "name":
        name = "wegiht"
    else:
        data += bytes(32)
    other = gguf_file([ARCHITECTURE], [tensor(name, shape, F32, 0)], data)
    fingerprints = [open_checkpoint(write(tmp_path, content)).fingerprint for content in (one_tensor(), other)]
    assert fingerprints[0] != fingerprints[1]


def resident_kib(path: Path) -> int:
    """KiB of the file's mappings that are in the resident set."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's account of resident pages")
def test_release_gives_the_pages_back_and_keeps_the_values(tmp_path):
    values = np.ones((1024, 1024), np.float32)
    path = write(tmp_path, one_tensor(shape=values.shape, data=values.tobytes()))
    found = open_checkpoint(path).tensors["weight"]
    assert found.data.view(np.float32).sum() == values.size
    before = resident_kib(path)
    release(found.data)
    assert before > 4000 and resident_kib(path) < 100
    assert found.data.view(np.float32).sum() == values.size
