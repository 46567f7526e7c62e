"""From every format's blocks to packed tiles: exact where the table says so, within 8 bits where it does not."""

import numpy as np
import pytest
from isotherm.cpu_kernels.layout import KINDS, ROWS, SPAN, padded, padded_rows
from isotherm.cpu_kernels.reference import unpack
from isotherm.experts.codes import pack_rows, quantise_rows
from isotherm.experts.formats import FORMATS
from support.blocks import encode

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
    tiles = np.zeros((padded_rows(len(raw)) // ROWS, padded(columns) // SPAN, KINDS[kind].span_bytes), np.uint8)
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
    # Q4_K: scale and minimum are rounded to float16, by 2^-11 of up to 15 scales and of the minimum. The others: half a
    # step of 1/127 of the largest, and the rounding of the step itself.
    share = 3 * 2.0**-11 if name == "Q4_K" else 0.5 / 127 + 2.0**-11
    bound = share * groups + 1e-6
    assert (np.abs(got - expected).reshape(rows, -1, 32) <= bound[..., None]).all()


def test_every_code_of_a_format_is_kept():
    """Blocks whose codes take all 16 (256) values in every place."""
    for name, header, bits in (("Q4_0", 2, 4), ("Q4_1", 4, 4), ("Q8_0", 2, 8), ("Q4_K", 16, 4), ("Q5_0", 2, 5)):
        row = FORMATS[name]
        raw = np.random.default_rng(bits).integers(0, 256, (64, 2 * row.block_bytes)).astype(np.uint8)
        blocks = raw.reshape(64, 2, row.block_bytes)
        halves = blocks[:, :, : {2: 2, 4: 4, 16: 4}[header]].view(np.float16)
        halves[...] = [1.0, 0.5][: halves.shape[-1]]
        np.testing.assert_array_equal(packed(name, raw, 2 * row.block), row.dequantise(raw))


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
