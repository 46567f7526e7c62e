"""Every layout of quantised safetensors: its matrices are read, and packed, to the numbers that were written."""

import json

import numpy as np
import pytest
import torch
from isotherm.experts.checkpoint import open_checkpoint
from isotherm.experts.formats import FORMATS, dequantise, format_of
from isotherm.experts.quantisation import finder
from safetensors.torch import save_file
from support.oracle import packed_values
from support.quantised import LAYOUTS

SIZES = [(1, 64), (8, 32), (16, 2880), (33, 704), (130, 320), (264, 192)]


def opened(folder, tensors, settings):
    """The checkpoint of some tensors, and the look-up of its matrices."""
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return finder(open_checkpoint(folder))


def matrix(rows, columns, *bank):
    random = torch.Generator().manual_seed(rows + columns)
    values = torch.randn(*bank, rows, columns, generator=random)
    return values * torch.exp(2 * torch.randn(*bank, rows, 1, generator=random))


def sizes_of(layout):
    """Those whose rows make whole words."""
    return [size for size in SIZES if "awq" not in layout or size[0] % 8 == 0]


SEPARATE = [name for name, layout in LAYOUTS.items() if not layout.stacked]
STACKED = [name for name, layout in LAYOUTS.items() if layout.stacked]


@pytest.mark.parametrize("rows, columns, layout", [(*size, name) for name in SEPARATE for size in sizes_of(name)])
def test_a_matrix_is_what_was_written(rows, columns, layout, tmp_path):
    tensors, expected = LAYOUTS[layout].write("m", matrix(rows, columns))
    found = opened(tmp_path, tensors, LAYOUTS[layout].settings)("m.weight")
    assert (found.name, found.shape, found.format) == ("m.weight", (rows, columns), LAYOUTS[layout].format)
    np.testing.assert_array_equal(dequantise(found), expected)
    assert format_of(found).exact
    np.testing.assert_array_equal(packed_values(found), expected)


@pytest.mark.parametrize("part", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("rows, columns", [(2, 64), (16, 96), (34, 704), (192, 320), (1408, 128)])
@pytest.mark.parametrize("layout", STACKED)
def test_a_bank_is_what_was_written(layout, rows, columns, part, tmp_path):
    tensors, expected = LAYOUTS[layout].write(part, matrix(rows, columns, 3))
    found = opened(tmp_path, tensors, LAYOUTS[layout].settings)(part)
    assert (found.shape, found.format) == ((3, rows, columns), LAYOUTS[layout].format)
    np.testing.assert_array_equal(dequantise(found), expected)
    for half in range(2):
        one = found.part(half, 2).expert(2)
        assert one.shape == (rows // 2, columns)
        np.testing.assert_array_equal(packed_values(one), expected[2, half * rows // 2 :][: rows // 2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_can_be_read_a_few_at_a_time(layout, tmp_path):
    bank = (2,) if LAYOUTS[layout].stacked else ()
    tensors, _ = LAYOUTS[layout].write("m", matrix(136, 192, *bank))
    found = opened(tmp_path, tensors, LAYOUTS[layout].settings)("m" if bank else "m.weight")
    found = found.expert(1) if bank else found
    parts = [found.rows(first, first + 32) for first in range(0, 136, 32)]
    np.testing.assert_array_equal(np.concatenate(parts), found.rows(0, 136))
    assert parts[0].flags.c_contiguous


@pytest.mark.parametrize("layout", LAYOUTS)
def test_modules_that_are_stored_in_floats_stay_floats(layout, tmp_path):
    values = matrix(8, 64)
    found = opened(tmp_path, {"router.weight": values.bfloat16()}, LAYOUTS[layout].settings)("router.weight")
    assert found.format == "BF16"
    np.testing.assert_array_equal(dequantise(found), values.bfloat16().float())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_missing_is_none(layout, tmp_path):
    find = opened(tmp_path, {"other.weight": torch.zeros(2, 2)}, LAYOUTS[layout].settings)
    assert find("m.weight") is None and find("m") is None


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_8_bit_codes_that_are_no_numbers_are_refused(code, tmp_path):
    tensors, _ = LAYOUTS["fp8 blocks"].write("m", matrix(40, 192))
    tensors["m.weight"].view(torch.uint8)[39, 191] = code
    found = opened(tmp_path, tensors, LAYOUTS["fp8 blocks"].settings)("m.weight")
    found.rows(0, 32)
    with pytest.raises(ValueError, match=r"'m.weight' holds codes that are not numbers; download"):
        found.rows(32, 64)


def test_every_8_bit_float_is_read(tmp_path):
    codes = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F] + [0, 0], dtype=torch.uint8)
    tensors = {"m.weight": codes.view(torch.float8_e4m3fn).reshape(1, 256), "m.weight_scale": torch.tensor([0.75])}
    found = opened(tmp_path, tensors, LAYOUTS["fp8 tensors"].settings)("m.weight")
    np.testing.assert_array_equal(packed_values(found), tensors["m.weight"].float() * 0.75)


@pytest.mark.parametrize("name", ["FP8", "INT4", "INT4_BF16", "INT4_ZP", "INT4_ZP_BF16", "INT8", "INT8_BF16"])
def test_encoding_is_near_and_finds_zero(name):
    row, values = FORMATS[name], matrix(9, 256).numpy()
    values[0, :64] = 0
    got = row.dequantise(row.encode(values))
    assert not got[0, :64].any()
    # Half a step, and the largest is so many steps from zero; of a range around zero it may be but half of them.
    steps = {"FP8": 448 / 32, "INT4": 7, "INT4_BF16": 7, "INT4_ZP": 7.5, "INT4_ZP_BF16": 7.5}.get(name, 127)
    largest = np.abs(values.reshape(9, -1, row.block)).max(-1)
    assert (np.abs(got - values).reshape(9, -1, row.block).max(-1) <= 1.01 * largest / (2 * steps)).all()
