"""The sizes of a model before anything is packed: of checkpoints, of a GGUF header alone, of a config.json alone."""

import json
import shutil
from pathlib import Path

import pytest
from isotherm.experts.checkpoint.gguf_header import read_header
from isotherm.experts.checkpoint.mapping import map_file
from isotherm.experts.errors import CheckpointError, ModelError, UnsupportedModelError
from isotherm.experts.kv_store import kv_block_bytes
from isotherm.experts.model import open_model
from isotherm.experts.outline import outline
from isotherm.experts.pack import pack
from support.quantised import LAYOUTS, write_quantised
from support.tiny import config as tiny_config
from support.tiny import write_blank_gguf, write_gguf, write_hf

K_SIZES = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 256}


@pytest.mark.parametrize(
    ("architecture", "kind", "sizes"),
    [
        ("mixtral", "Q4_0", {}),
        ("qwen2_moe", "Q8_0", {}),
        ("qwen3_moe", "Q4_K", K_SIZES),
        ("olmoe", "BF16", {}),
        ("llama", "Q5_1", {}),
    ],
)
def test_the_bytes_are_those_that_packing_takes(tmp_path: Path, architecture: str, kind: str, sizes: dict) -> None:
    write_blank_gguf(tmp_path / "tiny.gguf", architecture, kind, **sizes)
    shape = outline(tmp_path / "tiny.gguf", "int16")
    assert shape.nbytes == pack(open_model(tmp_path / "tiny.gguf")).nbytes


def test_an_embedding_that_is_the_head_counts_once(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", tie_word_embeddings=True)
    shape = outline(tmp_path, "int16")
    assert shape.tied
    assert shape.head.nbytes == shape.embed.nbytes
    assert shape.nbytes == pack(open_model(tmp_path)).nbytes


def test_a_whole_checkpoint_keeps_its_fingerprint_and_says_what_it_is(tmp_path: Path) -> None:
    write_gguf(tmp_path / "some-model.gguf", "qwen2_moe", "Q4_0", num_hidden_layers=3, mlp_only_layers=[1])
    shape = outline(tmp_path / "some-model.gguf", "int8")
    model = open_model(tmp_path / "some-model.gguf")
    assert (shape.name, shape.fingerprint, shape.whole) == ("some-model", model.checkpoint.fingerprint, True)
    assert shape.moe_layers == (0, 2)
    assert (shape.layers[0].num_experts, shape.layers[0].top_k, shape.layers[1].num_experts) == (8, 3, 0)
    assert {product.role for product in shape.layers[1].dense} == {*"qkvo", "gate", "up", "down"}
    assert [product.role for product in shape.layers[0].expert] == ["gate", "up", "down"]
    assert shape.kv_bytes * shape.kv_block == kv_block_bytes(model.spec, "int8")


@pytest.mark.parametrize("rest", [0, 40])
def test_a_gguf_header_is_enough(tmp_path: Path, rest: int) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "qwen3_moe", {"": "Q4_0", "v_proj": "Q8_0"})
    whole = outline(file, "int16")
    cut = tmp_path / "cut" / "tiny.gguf"
    cut.parent.mkdir()
    cut.write_bytes(file.read_bytes()[: read_header(file, map_file(file)).end + rest])
    shape = outline(cut, "int16")
    assert (shape.layers, shape.nbytes, shape.head) == (whole.layers, whole.nbytes, whole.head)
    assert shape.sizes == whole.sizes
    assert not shape.whole
    assert shape.fingerprint != whole.fingerprint


def test_a_gguf_file_that_is_cut_within_its_header_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file, "llama", "Q4_0")
    file.write_bytes(file.read_bytes()[: read_header(file, map_file(file)).end - 3])
    with pytest.raises(CheckpointError, match=r"tiny\.gguf: .*truncated"):
        outline(file, "int16")


@pytest.mark.parametrize("architecture", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_a_config_alone_is_enough(tmp_path: Path, architecture: str) -> None:
    write_hf(tmp_path / "whole", architecture, "bfloat16")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "bare")
    whole, bare = outline(tmp_path / "whole", "int16"), outline(tmp_path / "bare", "int16")
    assert bare.sizes == whole.sizes
    assert not bare.whole
    assert outline(tmp_path / "bare" / "config.json", "int16") == bare


@pytest.mark.parametrize("layout", ["gptq", "awq", "fp8"])
def test_a_config_says_how_the_weights_are_quantised(tmp_path: Path, layout: str) -> None:
    name = next(name for name in LAYOUTS if name.startswith(layout))
    write_quantised(tmp_path / "whole", "qwen3_moe", LAYOUTS[name])
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "bare")
    whole, bare = outline(tmp_path / "whole", "int16"), outline(tmp_path / "bare", "int16")
    assert [product.kind for product in bare.layers[0].expert] == [p.kind for p in whole.layers[0].expert]
    assert bare.layers[0].expert_bytes == whole.layers[0].expert_bytes


def bare_config(folder: Path, architecture: str, **more: object) -> Path:
    """A folder with the config.json of a tiny model and nothing else."""
    config = json.loads(tiny_config(architecture).to_json_string(use_diff=False)) | {"dtype": "bfloat16"} | more
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


PACKED = {"weights": {"num_bits": 4, "type": "int", "symmetric": True}}


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"quant_method": "fp8"}, ("f8", "f8", "bf16")),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]},
            ("bf16", "f8", "bf16"),
        ),
        ({"quant_method": "awq", "modules_to_not_convert": ["self_attn"]}, ("bf16", "q4z", "bf16")),
        ({"quant_method": "awq", "modules_to_not_convert": None}, ("q4z", "q4z", "bf16")),
        ({"quant_method": "gptq", "bits": 8}, ("q8b", "q8b", "bf16")),
        ({"quant_method": "gptq", "bits": 4, "sym": False}, ("q4zb", "q4zb", "bf16")),
        ({"quant_method": "mxfp4"}, ("bf16", "mx4", "bf16")),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": PACKED}}, ("q4b", "q4b", "bf16")),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": PACKED}, "ignore": ["re:.*self_attn.*"]},
            ("bf16", "q4b", "bf16"),
        ),
    ],
)
def test_what_quantisers_leave_stays_in_floats(tmp_path: Path, settings: dict, kinds: tuple[str, ...]) -> None:
    shape = outline(bare_config(tmp_path, "qwen3_moe", quantization_config=settings), "int16")
    by_role = {product.role: product.kind for product in (*shape.layers[0].dense, *shape.layers[0].expert)}
    assert (by_role["q"], by_role["up"], by_role["router"]) == kinds
    assert (shape.embed.kind, shape.head.kind) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "hqq"}, "quant_method 'hqq', which is not supported"),
        ({"quant_method": "gptq", "bits": 3}, "'bits' is 3, which is not supported"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": PACKED, "b": PACKED}}, "2 groups.*--format"),
        ({"quant_method": "awq", "modules_to_not_convert": [7]}, "'modules_to_not_convert' is .*not a list of names"),
        ({"quant_method": "awq", "modules_to_not_convert": ["re:("]}, "holds 're:\\(', which is no pattern"),
    ],
)
def test_a_config_that_does_not_say_the_formats_is_refused(tmp_path: Path, settings: dict, message: str) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: .*{message}"):
        outline(bare_config(tmp_path, "qwen3_moe", quantization_config=settings), "int16")


def test_weights_that_are_not_all_there_are_planned_by_the_config(tmp_path: Path) -> None:
    folder = bare_config(tmp_path, "mixtral")
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not outline(folder, "int16").whole


def test_a_format_that_is_named_stands_for_the_stored_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", "qwen3_moe", "Q8_0", seed=1)
    write_gguf(tmp_path / "b.gguf", "qwen3_moe", "Q4_0", seed=2)
    shape = outline(tmp_path / "a.gguf", "int16", "Q4_0")
    assert shape.layers == outline(tmp_path / "b.gguf", "int16").layers
    assert not shape.whole


def test_rows_that_are_not_whole_blocks_take_a_format_that_has_such(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "qwen3_moe", "Q4_0")  # of 64 and 96 columns
    shape = outline(tmp_path / "tiny.gguf", "int16", "Q4_K")
    assert {product.kind for product in shape.layers[0].expert} == {"q8"}


def test_an_unknown_format_names_the_known_ones(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", "Q4_0")
    with pytest.raises(UnsupportedModelError, match=r"--format q4_9 is not .* q4_0"):
        outline(tmp_path / "tiny.gguf", "int16", "Q4_9")


def test_a_config_without_a_type_asks_for_the_format(tmp_path: Path) -> None:
    write_hf(tmp_path, "mixtral")
    (tmp_path / "model.safetensors").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("dtype", "torch_dtype"):
        config.pop(key, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"'torch_dtype' is missing.*--format"):
        outline(tmp_path, "int16")
    assert outline(tmp_path, "int16", "Q4_0").layers[0].expert[0].kind == "q4"


def test_a_broken_whole_checkpoint_is_not_planned_by_its_config(tmp_path: Path) -> None:
    write_hf(tmp_path, "mixtral")
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        outline(tmp_path, "int16")
