"""Scales and minima on their way into the heads of spans, on every tier: the rounding and the places."""

import numpy as np
import pytest
from isotherm.cpu_kernels.headers import pack_halves, pack_listed, pack_products
from isotherm.cpu_kernels.layout import KINDS, ROWS, SPAN, padded_rows
from isotherm.cpu_kernels.packing import pack_headers

BLOCK_BYTES, HALF_AT, BLOCKS = 40, 6, 3
# byte, shift, mask; the same of what is 4 bits above; what is taken off
PARTS = [(8 + i, 4, 15, 20 + i // 4, 2 * (i % 4), 3, 32) if i % 2 else (8 + i, 0, 255, 0, 0, 0, 0) for i in range(16)]


def blocks(rows):
    return np.random.default_rng(rows).integers(0, 256, (rows, BLOCKS, BLOCK_BYTES)).astype(np.uint8)


def tiles(rows, spans=4 * BLOCKS):
    return np.zeros((padded_rows(rows) // ROWS, spans, KINDS["q6"].span_bytes), np.uint8)


def placed(values, columns, at, like):
    out = np.zeros_like(like)
    pack_headers(values, at, out, columns)
    return out


def halves(data):
    return np.ascontiguousarray(data[..., HALF_AT : HALF_AT + 2]).view(np.float16)[..., 0]


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
@pytest.mark.parametrize("groups", [1, 8])
def test_halves_go_to_their_groups(groups, rows):
    data = blocks(rows)
    spans = -(-BLOCKS * groups * 32 // SPAN)
    out = tiles(rows, spans)
    pack_halves(data.reshape(rows, -1), BLOCK_BYTES, HALF_AT, groups, 64, out)
    bits = halves(data).view(np.uint16)
    np.testing.assert_array_equal(out, placed(np.repeat(bits, groups, 1), 32, 64, out))


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
@pytest.mark.parametrize("count, columns", [(1, 32), (4, 16)])
def test_bytes_are_looked_up(count, columns, rows):
    data = blocks(rows)
    listed = np.random.default_rng(0).permutation(256).astype(np.uint16) * 257
    out = tiles(rows, -(-BLOCKS * count * columns // SPAN))
    pack_listed(data.reshape(rows, -1), listed, BLOCK_BYTES, count, 0, out)
    expected = listed[data[..., :count]].reshape(rows, -1)
    np.testing.assert_array_equal(out, placed(expected, columns, 0, out))


def part_of(data, i):
    at, shift, mask, high_at, high_shift, high_mask, off = PARTS[i]
    low, high = data[..., at] >> np.uint8(shift) & mask, data[..., high_at] >> np.uint8(high_shift) & high_mask
    return (low | high << 4).astype(np.uint8).view(np.int8).astype(np.float32) - off


@pytest.mark.parametrize("factor", [1.0, -1.0])
@pytest.mark.parametrize("columns", [32, 16])
def test_products_are_rounded_once(columns, factor):
    rows = 200
    data = blocks(rows)
    data[..., HALF_AT + 1] &= 0b1011_0011  # halves below 2: no product overflows; some are denormal
    out = tiles(rows, BLOCKS * 16 * columns // SPAN)
    parts = np.array(PARTS)
    pack_products(data.reshape(rows, -1), parts, BLOCK_BYTES, HALF_AT, factor, columns, 128, out)
    scales = np.float32(factor) * halves(data).astype(np.float32)
    values = np.stack([scales * part_of(data, i) for i in range(16)], axis=-1).astype(np.float16)
    assert (np.abs(values[values != 0]) < 2.0**-14).any()
    np.testing.assert_array_equal(out, placed(values.reshape(rows, -1), columns, 128, out))
