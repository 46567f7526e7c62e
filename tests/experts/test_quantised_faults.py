"""Quantised safetensors that are unsound or not supported are refused, naming the tensor or key and the remedy."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from isotherm.experts.checkpoint import open_checkpoint
from isotherm.experts.errors import CheckpointError, ModelError, UnsupportedModelError
from isotherm.experts.model import open_model
from isotherm.experts.pack import packed_size
from isotherm.experts.quantisation import finder
from safetensors.torch import save_file
from support.quantised import LAYOUTS, compressed, write_quantised

W = torch.randn(48, 192, generator=torch.Generator().manual_seed(0))


def find(folder: Path, tensors: dict[str, Any], settings: Any, name: str = "m.weight") -> Any:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return finder(open_checkpoint(folder))(name)


def refused(folder: Path, layout: str, kind: type[ModelError], text: str, **settings: Any) -> None:
    """The matrix of the layout with some settings changed."""
    tensors, _ = LAYOUTS[layout].write("m", W)
    with pytest.raises(kind, match=text):
        find(folder, tensors, dict(LAYOUTS[layout].settings) | settings)


MISSING = [
    ("fp8 blocks", "m.weight_scale_inv", "m.weight", "m.weight_scale"),
    ("gptq", "m.scales", "m.qweight", "m.scales"),
    ("gptq zero points", "m.qzeros", "m.qweight", "m.qzeros"),
    ("awq", "m.scales", "m.qweight", "m.scales"),
    ("awq", "m.qzeros", "m.qweight", "m.qzeros"),
    ("packed", "m.weight_scale", "m.weight_packed", "m.weight_scale"),
    ("packed zero points", "m.weight_zero_point", "m.weight_packed", "m.weight_zero_point"),
    ("mxfp4", "m_scales", "m_blocks", "m_scales"),
]


@pytest.mark.parametrize("layout, part, codes, named", MISSING)
def test_a_missing_part(layout: str, part: str, codes: str, named: str, tmp_path: Path) -> None:
    tensors, _ = LAYOUTS[layout].write("m", W[None] if layout == "mxfp4" else W)
    del tensors[part]
    with pytest.raises(CheckpointError, match=f"tensor '{codes}' belongs to '{named}', which is missing; download"):
        find(tmp_path, tensors, LAYOUTS[layout].settings, "m" if layout == "mxfp4" else "m.weight")


@pytest.mark.parametrize("layout, part, codes, named", MISSING)
def test_a_part_of_another_shape(layout: str, part: str, codes: str, named: str, tmp_path: Path) -> None:
    tensors, _ = LAYOUTS[layout].write("m", W[None] if layout == "mxfp4" else W)
    shape = tuple(tensors[part].shape)
    tensors[part] = torch.cat([tensors[part], tensors[part]], 0)
    with pytest.raises(
        CheckpointError, match=rf"'{codes}' of shape .* does not fit '{part}' of shape \(\d+.* expected"
    ):
        find(tmp_path, tensors, LAYOUTS[layout].settings, "m" if layout == "mxfp4" else "m.weight")
    assert shape != tuple(tensors[part].shape)


@pytest.mark.parametrize("layout, part, codes, named", MISSING)
def test_a_part_of_another_type(layout: str, part: str, codes: str, named: str, tmp_path: Path) -> None:
    tensors, _ = LAYOUTS[layout].write("m", W[None] if layout == "mxfp4" else W)
    tensors[part] = tensors[part].to(torch.float64)
    with pytest.raises(CheckpointError, match=f"'{codes}' belongs to '{part}', which is F64 and not "):
        find(tmp_path, tensors, LAYOUTS[layout].settings, "m" if layout == "mxfp4" else "m.weight")


@pytest.mark.parametrize("layout, name", [("gptq", "m.qweight"), ("awq", "m.qweight"), ("packed", "m.weight_packed")])
@pytest.mark.parametrize("codes", [torch.zeros(8, 8), torch.zeros(64, dtype=torch.int32)])
def test_codes_that_are_no_matrix_of_words(codes: torch.Tensor, layout: str, name: str, tmp_path: Path) -> None:
    tensors, _ = LAYOUTS[layout].write("m", W)
    with pytest.raises(CheckpointError, match=rf"'{name}' is .*, not a matrix of I32; download"):
        find(tmp_path, tensors | {name: codes}, LAYOUTS[layout].settings)


@pytest.mark.parametrize(
    "blocks", [torch.zeros(2, 8, 3, 8, dtype=torch.uint8), torch.zeros(2, 8, 16, dtype=torch.uint8)]
)
def test_blocks_of_another_size(blocks: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'m_blocks' is U8 .*, not U8 \(experts, rows, blocks, 16\); download"):
        find(tmp_path, {"m_blocks": blocks}, LAYOUTS["mxfp4"].settings, "m")


def test_an_odd_number_of_woven_rows(tmp_path: Path) -> None:
    blocks = torch.zeros(2, 7, 3, 16, dtype=torch.uint8)
    with pytest.raises(CheckpointError, match="'gate_up_proj_blocks' is U8"):
        find(tmp_path, {"gate_up_proj_blocks": blocks}, LAYOUTS["mxfp4"].settings, "gate_up_proj")


METHODS = ["bitsandbytes", "aqlm", "hqq", "modelopt", "auto-round", "exl3"]


@pytest.mark.parametrize("method", METHODS)
def test_an_unknown_method(method: str, tmp_path: Path) -> None:
    text = (
        f"'quantization_config' has the quant_method '{method}', which is not supported; use the original model, a GGUF"
    )
    with pytest.raises(UnsupportedModelError, match=text):
        find(tmp_path, {"m.weight": W}, {"quant_method": method, "bits": 4})


def test_a_config_without_a_method(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'quant_method' is missing"):
        find(tmp_path, {"m.weight": W}, {"bits": 4})


@pytest.mark.parametrize("settings", ["gptq", [], 4, True])
def test_a_config_that_is_no_object(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'quantization_config' is .*, not an object"):
        find(tmp_path, {"m.weight": W}, settings)


SETTINGS = [
    ("gptq", UnsupportedModelError, "'bits' is 3, only 4 and 8", {"bits": 3}),
    ("gptq", CheckpointError, "'bits' is 'four', not an integer", {"bits": "four"}),
    ("gptq", CheckpointError, "'group_size' is 0, not within", {"group_size": 0}),
    ("gptq", CheckpointError, "'group_size' is -2, not within", {"group_size": -2}),
    ("gptq", CheckpointError, "'group_size' is 1000000000000, not within", {"group_size": 10**12}),
    ("gptq", CheckpointError, "'group_size' is missing", {"group_size": None}),
    ("gptq", UnsupportedModelError, "'group_size' is 16; only multiples of 32", {"group_size": 16}),
    ("gptq", CheckpointError, r"does not fit 'm.scales' of shape \(2, 48\), \(6, 48\) expected", {"group_size": 32}),
    ("gptq", UnsupportedModelError, "'checkpoint_format' is 'marlin', only gptq", {"checkpoint_format": "marlin"}),
    (
        "gptq",
        UnsupportedModelError,
        "'dynamic' quantises some modules in other ways",
        {"dynamic": {"m": {}}},
    ),
    ("gptq 8 bits", UnsupportedModelError, "'m.qweight' has 8 bits and zero points, which", {"sym": False}),
    ("awq", UnsupportedModelError, "'bits' is 8, only 4", {"bits": 8}),
    ("awq", UnsupportedModelError, "'version' is 'gemv', only 'gemm'", {"version": "gemv"}),
    ("awq", UnsupportedModelError, "'zero_point' is false", {"zero_point": False}),
    ("fp8 blocks", UnsupportedModelError, "'fmt' is 'e5m2', only 'e4m3'", {"fmt": "e5m2"}),
    ("fp8 blocks", CheckpointError, r"'weight_block_size' is \[128\], not two sizes", {"weight_block_size": [128]}),
    ("fp8 blocks", CheckpointError, "'weight_block_size' is .*, not two sizes", {"weight_block_size": [128, -128]}),
    ("fp8 blocks", UnsupportedModelError, "only multiples of 64 columns", {"weight_block_size": [1, 32]}),
    (
        "fp8 blocks",
        CheckpointError,
        r"does not fit 'm.weight_scale_inv' of shape \(1, 2\)",
        {"weight_block_size": None},
    ),
    ("packed", UnsupportedModelError, "'format' is 'nvfp4-pack-quantized'", {"format": "nvfp4-pack-quantized"}),
    ("packed", UnsupportedModelError, "'sparsity_config' is not", {"sparsity_config": {"format": "sparse-24-bitmask"}}),
    ("packed", UnsupportedModelError, "'transform_config' is not", {"transform_config": {"config_groups": {"u": {}}}}),
    ("packed", CheckpointError, "'m.weight_packed' is quantised, but no group", {"config_groups": {}}),
    ("packed", CheckpointError, "'config_groups' is 3, not an object", {"config_groups": 3}),
]


@pytest.mark.parametrize("layout, kind, text, settings", SETTINGS)
def test_settings(layout: str, kind: type[ModelError], text: str, settings: dict[str, Any], tmp_path: Path) -> None:
    refused(tmp_path, layout, kind, text, **settings)


PACKED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
WEIGHTS = [
    (UnsupportedModelError, "'num_bits' is 2 of type 'int'", {"num_bits": 2}),
    (UnsupportedModelError, "'num_bits' is 4 of type 'float'", {"type": "float"}),
    (UnsupportedModelError, "'strategy' is 'tensor_group'", {"strategy": "tensor_group"}),
    (UnsupportedModelError, "'group_size' is 8; only multiples of 32", {"group_size": 8}),
    (CheckpointError, "'m.weight_packed' holds integers, but", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    (CheckpointError, "'symmetric' is 1, not true or false", {"symmetric": 1}),
]


@pytest.mark.parametrize("kind, text, weights", WEIGHTS)
def test_weights_of_a_group(kind: type[ModelError], text: str, weights: dict[str, Any], tmp_path: Path) -> None:
    refused(tmp_path, "packed", kind, text, **compressed("pack-quantized", **PACKED | weights))


@pytest.mark.parametrize("weights", [{"num_bits": 4}, {"symmetric": False}])
def test_bytes_that_hold_other_integers(weights: dict[str, Any], tmp_path: Path) -> None:
    settings = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"} | weights
    text = "'m.weight' has other numbers in its bytes than 8-bit integers around 0, which is not supported"
    refused(tmp_path, "int-quantized", UnsupportedModelError, text, **compressed("int-quantized", **settings))


@pytest.mark.parametrize("targets", ["Linear", [3], ["re:("]])
def test_targets_that_name_nothing(targets: Any, tmp_path: Path) -> None:
    settings = compressed("pack-quantized", **PACKED)
    settings["config_groups"]["group_0"]["targets"] = targets
    refused(tmp_path, "packed", CheckpointError, "'targets' (is|holds) .*", **settings)


def test_groups_are_chosen_by_name_first(tmp_path: Path) -> None:
    eight, four = compressed("pack-quantized", **PACKED | {"num_bits": 8}), compressed("pack-quantized", **PACKED)
    four["config_groups"]["group_0"]["targets"] = ["re:.*m$"]
    four["format"] = "mixed-precision"
    groups = {"other": eight["config_groups"]["group_0"], "ours": four["config_groups"]["group_0"]}
    tensors, _ = LAYOUTS["packed"].write("m", W)
    assert find(tmp_path, tensors, four | {"config_groups": groups}).format == "INT4_BF16"


@pytest.mark.parametrize("early", [True, False])
def test_columns_in_another_order(early: bool, tmp_path: Path) -> None:
    """Said by the config they are refused before anything is read, else when they are read."""
    tensors, _ = LAYOUTS["gptq 32"].write("m", W)
    tensors["m.g_idx"] = tensors["m.g_idx"].flip(0)
    settings = dict(LAYOUTS["gptq 32"].settings) | {"desc_act": early}
    with pytest.raises(
        UnsupportedModelError, match=r"'m.qweight' was quantised with its columns in another order \(desc"
    ):
        find(tmp_path, tensors, settings).rows(0, 32)
    if not early:
        assert find(tmp_path, tensors, settings).shape == (48, 192)


def test_packed_columns_in_another_order(tmp_path: Path) -> None:
    tensors, _ = LAYOUTS["packed"].write("m", W)
    tensors["m.weight_g_idx"] = (torch.arange(192) % 6).to(torch.int32)
    with pytest.raises(
        UnsupportedModelError, match=r"'m.weight_packed' was quantised with its columns in another order"
    ):
        find(tmp_path, tensors, LAYOUTS["packed"].settings).rows(0, 32)
    tensors["m.weight_g_idx"] = (torch.arange(192) // 32).to(torch.int32)
    assert len(find(tmp_path, tensors, LAYOUTS["packed"].settings).rows(0, 32)) == 32


def test_columns_in_their_order_may_be_said_to_be_sorted(tmp_path: Path) -> None:
    tensors, _ = LAYOUTS["gptq 32"].write("m", W)
    assert find(tmp_path, tensors, dict(LAYOUTS["gptq 32"].settings) | {"desc_act": True}).shape == (48, 192)


def test_zero_points_of_what_is_symmetric(tmp_path: Path) -> None:
    """As where a file of version 2 is said to be of version 1."""
    tensors, _ = LAYOUTS["gptq 32"].write("m", W)
    settings = dict(LAYOUTS["gptq 32"].settings) | {"checkpoint_format": "gptq"}
    with pytest.raises(CheckpointError, match=r"'m.qweight' is symmetric by its config, but has zero points other"):
        find(tmp_path, tensors, settings).rows(0, 32)


def test_rows_that_are_not_whole_groups(tmp_path: Path) -> None:
    tensors, _ = LAYOUTS["gptq rows"].write("m", W[:, :40])
    with pytest.raises(UnsupportedModelError, match=r"'m.qweight' has rows of 40 columns, not whole groups of 32"):
        find(tmp_path, tensors, LAYOUTS["gptq rows"].settings)


def test_an_empty_part(tmp_path: Path) -> None:
    tensors, _ = LAYOUTS["gptq"].write("m", W)
    with pytest.raises(CheckpointError, match=r"'m.scales' .* does not fit its 0 bytes"):
        find(tmp_path, tensors | {"m.scales": torch.zeros(0, 48)}, LAYOUTS["gptq"].settings)


def test_8_bit_floats_without_a_config_are_not_taken_for_weights(tmp_path: Path) -> None:
    write_quantised(tmp_path, "llama", LAYOUTS["fp8 blocks"])
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"q_proj.weight' has the format F8_E4M3, which is not supported"):
        open_model(tmp_path)


def test_a_matrix_of_the_wrong_size_for_the_model(tmp_path: Path) -> None:
    write_quantised(tmp_path, "llama", LAYOUTS["gptq"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 384}))
    with pytest.raises(CheckpointError, match=r"mlp.gate_proj.weight' has the shape \(352, 192\), \(384"):
        open_model(tmp_path)


def test_the_size_in_memory_is_known_before_a_weight_is_read(tmp_path: Path) -> None:
    write_quantised(tmp_path, "qwen3_moe", LAYOUTS["fp8 blocks"])
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start:] = b"\x7f" * (len(content) - start)  # no number anywhere
    size = packed_size(open_model(tmp_path))
    file.write_bytes(content)
    assert packed_size(open_model(tmp_path)) == size
