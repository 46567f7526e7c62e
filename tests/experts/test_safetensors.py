import json
import struct
from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.checkpoint import open_checkpoint
from isotherm.experts.errors import CheckpointError, ModelError, UnsupportedModelError
from isotherm.experts.formats import format_of

FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)
DATA = FLOATS.tobytes()
RECORD = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}
INDEX = "model.safetensors.index.json"


def file_bytes(header: object = None, data: bytes = DATA, length: int | None = None) -> bytes:
    text = (
        header if isinstance(header, bytes) else json.dumps({"weight": RECORD} if header is None else header).encode()
    )
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def write_folder(folder: Path, content: bytes | None = None, config: bytes = b'{"model_type": "llama"}') -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(file_bytes() if content is None else content)
    return folder


def write_shards(folder: Path, weight_map: dict[str, object] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(file_bytes({f"weight.{number}": RECORD}))
    listed = weight_map or {f"weight.{number}": f"model-{number}.safetensors" for number in (1, 2)}
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))
    return folder


def test_tensor_is_a_read_only_view_in_its_shape(tmp_path):
    checkpoint = open_checkpoint(write_folder(tmp_path / "model"))
    found = checkpoint.tensors["weight"]
    assert (found.shape, found.format, found.data.shape) == ((3, 4), "F32", (3, 16))
    np.testing.assert_array_equal(found.data.view(np.float32), FLOATS)
    assert not found.data.flags.writeable and not found.data.flags.owndata
    assert checkpoint.metadata["model_type"] == "llama"


def test_a_file_beside_its_config_is_opened_by_name(tmp_path):
    folder = write_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert open_checkpoint(folder / "other.safetensors").tensors.keys() == {"weight"}


@pytest.mark.parametrize("named", ["", "model-1.safetensors", "model-2.safetensors"])
def test_shards_are_opened_together(tmp_path, named):
    folder = write_shards(tmp_path / "model")
    tensors = open_checkpoint(folder / named).tensors
    assert {name: found.file.name for name, found in tensors.items()} == {
        "weight.1": "model-1.safetensors",
        "weight.2": "model-2.safetensors",
    }


def test_a_scalar_is_a_vector_of_one(tmp_path):
    record = {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}
    folder = write_folder(tmp_path / "model", file_bytes({"count": record}, bytes(8)))
    assert open_checkpoint(folder).tensors["count"].shape == (1,)


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I64", "Q4_0"])
def test_unknown_dtype_is_refused_only_when_it_is_asked_for(tmp_path, dtype):
    size = 96 if dtype == "I64" else 12
    header = {"odd": {"dtype": dtype, "shape": [3, 4], "data_offsets": [0, size]}}
    found = open_checkpoint(write_folder(tmp_path / "model", file_bytes(header, bytes(size)))).tensors["odd"]
    with pytest.raises(UnsupportedModelError, match=rf"tensor 'odd' has the format .*{dtype}.*use a file in F32"):
        format_of(found)


def record(**changes: object) -> bytes:
    return file_bytes({"weight": {**RECORD, **changes}})


TWICE = json.dumps({"weight": RECORD})[:-1].encode() + b', "weight": ' + json.dumps(RECORD).encode() + b"}"
BROKEN = {
    "zero length": (b"", "empty"),
    "three bytes": (b"abc", "truncated"),
    "header beyond the file": (file_bytes(length=10_000), "a header of 10000 bytes"),
    "header of 2^63 bytes": (file_bytes(length=1 << 63), "a header of 9223372036854775808 bytes"),
    "no JSON": (file_bytes(b"{nonsense"), "not valid JSON"),
    "no text": (file_bytes(b"\xff\xfe\xfd"), "not valid JSON"),
    "deep JSON": (file_bytes(b"[" * 100_000), "not valid JSON"),
    "no object": (file_bytes(b"[1, 2]"), "not an object"),
    "tensor twice": (file_bytes(TWICE), "'weight' appears twice"),
    "record is a list": (file_bytes({"weight": [1]}), "record of tensor 'weight'"),
    "no dtype": (record(dtype=None), "record of tensor 'weight'"),
    "negative size": (record(shape=[-3, 4]), "record of tensor 'weight'"),
    "textual size": (record(shape=["3", 4]), "record of tensor 'weight'"),
    "boolean size": (record(shape=[True, 12]), "record of tensor 'weight'"),
    "one offset": (record(data_offsets=[0]), "record of tensor 'weight'"),
    "reversed offsets": (record(data_offsets=[48, 0]), "'weight' (3, 4) F32 does not fit its -48 bytes"),
    "wrong size": (record(shape=[3, 5]), "'weight' (3, 5) F32 does not fit its 48 bytes"),
    "sizes that overflow": (record(shape=[1 << 40, 1 << 40]), "'weight'"),
    "empty dimension": (record(shape=[0, 4], data_offsets=[0, 0]), "'weight'"),
    "empty dimension of an unknown dtype": (record(dtype="X", shape=[0, 4]), "'weight'"),
    "rank of nine": (record(shape=[3, 4, 1, 1, 1, 1, 1, 1, 1]), "'weight'"),
    "offset beyond the end": (record(data_offsets=[480, 528]), "'weight' ends 480 bytes beyond the end"),
    "data cut": (file_bytes(data=DATA[:-1]), "'weight' ends 1 bytes beyond the end"),
    "overlapping tensors": (file_bytes({"a": RECORD, "b": RECORD}), "'a' and 'b' overlap"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_is_one_clear_error(tmp_path, name):
    content, problem = BROKEN[name]
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write_folder(tmp_path / "model", content))
    assert problem in str(caught.value)
    assert "model.safetensors" in str(caught.value)
    assert "download or convert it again" in str(caught.value)


def test_truncation_anywhere_is_found(tmp_path):
    content = file_bytes()
    for length in range(len(content)):
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            open_checkpoint(write_folder(tmp_path / "model", content[:length]))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "not an object"),
        (b'{"a":1,"a":2}', "'a' appears twice"),
    ],
)
def test_broken_config_is_named(tmp_path, config, problem):
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{problem}"):
        open_checkpoint(write_folder(tmp_path / "model", config=config))


def test_folder_without_config_is_refused_with_the_remedy(tmp_path):
    folder = write_folder(tmp_path / "model")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json: missing.*download it as well"):
        open_checkpoint(folder)


def test_folder_without_weights_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor .*name a model folder"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_folder_of_pickles_is_refused_with_the_remedy(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedModelError, match="can run code; convert the model to safetensors"):
        open_checkpoint(tmp_path)


def test_missing_shard_is_named(tmp_path):
    folder = write_shards(tmp_path / "model")
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-2\.safetensors: this shard.*is missing; download it into"):
        open_checkpoint(folder)


def test_shard_without_its_tensor_is_named(tmp_path):
    listed = {name: "model-1.safetensors" for name in ("weight.1", "weight.9")}
    with pytest.raises(CheckpointError, match=r"model-1\.safetensors: tensor 'weight.9'.*is missing"):
        open_checkpoint(write_shards(tmp_path / "model", listed))


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/x.safetensors", "weights.bin", 3, ""])
def test_index_must_not_leave_its_folder(tmp_path, shard):
    with pytest.raises(
        CheckpointError, match=r"index\.json: tensor 'weight.1' lies in .*, not a .safetensors file name"
    ):
        open_checkpoint(write_shards(tmp_path / "model", {"weight.1": shard}))


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": []}'])
def test_index_without_tensors_is_refused(tmp_path, content):
    folder = write_shards(tmp_path / "model")
    (folder / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=r"index\.json: key 'weight_map'"):
        open_checkpoint(folder)


def test_random_damage_never_escapes_as_another_error(tmp_path):
    rng, content = np.random.default_rng(0), file_bytes()
    for _ in range(200):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content) - 48, rng.integers(1, 4)):
            damaged[position] = rng.integers(0, 256)
        try:
            open_checkpoint(write_folder(tmp_path / "model", bytes(damaged)))
        except ModelError as error:
            assert "model.safetensors" in str(error)
