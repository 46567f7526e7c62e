"""From every format's blocks to packed tiles: exact where the table says so, within 8 bits where it does not."""

import numpy as np
import pytest
from isotherm.cpu_kernels.layout import packed_shape, padded, padded_rows
from isotherm.cpu_kernels.reference import unpack
from isotherm.experts.codes import pack_rows, quantise_rows
from isotherm.experts.formats import FORMATS, INT8_ERROR
from support.block_fields import FIELDS, tiles_of
from support.blocks import GGUF_FORMATS, encode

ROW_COUNTS = [1, 16, 17, 33, 100]


def encoded(name, rows, columns, seed=0):
    """Random rows in the format, uint8 [rows, bytes per row]; groups of very different size, and one of zeros."""
    rng = np.random.default_rng([seed, rows, columns])
    values = rng.standard_normal((rows, columns), np.float32)
    values *= np.repeat(np.exp(rng.uniform(-5, 3, (rows, columns // 32))), 32, 1).astype(np.float32)
    values[0, :32] = 0
    return np.ascontiguousarray(encode(values, name)).view(np.uint8)


def packed(name, raw, columns):
    """The numbers in the tiles that the rows become."""
    kind = FORMATS[name].packed
    tiles = np.zeros(packed_shape(kind, len(raw), columns), np.uint8)
    pack_rows(name, raw, columns, tiles)
    whole = unpack(kind, tiles, padded_rows(len(raw)), padded(columns))
    assert not whole[len(raw) :].any() and not whole[:, columns:].any()
    return whole[: len(raw), :columns]


def columns_of(name):
    return {256: [256, 768], 64: [64, 704]}.get(FORMATS[name].block, [32, 64, 96, 704])


CASES = [(name, columns) for name in FORMATS for columns in columns_of(name)]


@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize("name, columns", CASES)
def test_packed_numbers_are_the_format_s(name, columns, rows):
    raw = encoded(name, rows, columns)
    expected = FORMATS[name].dequantise(raw)
    got = packed(name, raw, columns)
    if FORMATS[name].exact:
        np.testing.assert_array_equal(got, expected)
        return
    groups = np.abs(expected.reshape(rows, -1, 32)).max(-1)
    # half a step of 1/127 of the largest, and the rounding of the step itself to float16, whose smallest is 2^-24
    bound = (0.5 / 127 + 2.0**-11) * groups + 2.0**-25 * 127
    assert (np.abs(got - expected).reshape(rows, -1, 32) <= bound[..., None]).all()


# Where the float16 scale of a block lies, and the one of its minima.
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
HALVES |= {"TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": ()}


@pytest.mark.parametrize("name", HALVES)
def test_every_code_of_a_format_is_kept(name):
    """Random bytes but for the block's own scales, so codes take all values in every place, and sub-blocks' scales."""
    row = FORMATS[name]
    raw = np.random.default_rng(0).integers(0, 256, (64, 2 * row.block_bytes)).astype(np.uint8)
    blocks = raw.reshape(64, 2, row.block_bytes)
    for at, value in zip(HALVES[name], (1.0, 0.5), strict=False):
        blocks[:, :, at : at + 2] = np.full(1, value, np.float16).view(np.uint8)
    if name == "MXFP4":
        blocks[:, :, 0] %= 250  # beyond lie infinities
    np.testing.assert_array_equal(packed(name, raw, 2 * row.block), row.dequantise(raw))


def random_blocks(name, rows, columns):
    """Random bytes, but the exponents of the blocks' own scales are not so large that products overflow."""
    row = FORMATS[name]
    raw = np.random.default_rng([rows, columns]).integers(0, 256, (rows, columns // row.block * row.block_bytes))
    raw = raw.astype(np.uint8)
    for at in HALVES[name]:
        raw.reshape(rows, -1, row.block_bytes)[:, :, at + 1] &= 0b1011_0011  # below 2
    if name == "MXFP4":
        raw.reshape(rows, -1, row.block_bytes)[:, :, 0] %= 250
    return raw


@pytest.mark.parametrize("rows", ROW_COUNTS)
@pytest.mark.parametrize("name, columns", [(name, columns) for name, columns in CASES if name in FIELDS])
def test_kernels_move_what_the_fields_say(name, columns, rows):
    raw = random_blocks(name, rows, columns)
    expected = tiles_of(name, raw, columns)
    got = np.zeros_like(expected)
    pack_rows(name, raw, columns, got)
    np.testing.assert_array_equal(got, expected)


def test_every_format_that_keeps_its_codes_has_fields():
    own = {name for name, row in FORMATS.items() if row.product_error == INT8_ERROR}
    assert set(FIELDS) == own & set(GGUF_FORMATS)


def test_rounding_puts_the_largest_at_the_end_of_the_codes():
    values = np.zeros((1, 64), np.float32)
    values[0, 3], values[0, 4], values[0, 40] = -127, 63.6, 1e-9
    codes, scales = quantise_rows(values)
    assert scales.tolist() == [[1.0, 0.0]]
    assert codes[0, :6].tolist() == [128, 128, 128, 1, 192, 128]
    assert (codes[0, 32:] == 128).all()


def test_float_rows_keep_their_bits():
    values = np.array([[np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4e38] + [1.0] * 26], np.float32)
    got = packed("F32", values.view(np.uint8), 32)
    np.testing.assert_array_equal(got, values)
    assert np.signbit(got[0, 3])
