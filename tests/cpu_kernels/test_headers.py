"""Scales and minima on their way into the heads of spans, on every tier: the rounding and the places."""

import numpy as np
import pytest
from isotherm.cpu_kernels.headers import pack_halves, pack_listed, pack_part_bytes, pack_sixes
from isotherm.cpu_kernels.layout import CODES, KINDS, ROWS, SPAN, padded_rows
from isotherm.cpu_kernels.packing import pack_headers
from support.parts import put_parts

BLOCK_BYTES, HALF_AT, BLOCKS = 40, 6, 3
# byte, shift, mask; the same of what is 4 bits above
PARTS = [(8 + i, 4, 15, 20 + i // 4, 2 * (i % 4), 3) if i % 2 else (8 + i, 0, 63, 0, 0, 0) for i in range(16)]


def blocks(rows):
    return np.random.default_rng(rows).integers(0, 256, (rows, BLOCKS, BLOCK_BYTES)).astype(np.uint8)


def tiles(rows, spans=4 * BLOCKS):
    return np.zeros((padded_rows(rows) // ROWS, spans, KINDS["q5m"].unit_bytes), np.uint8)


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
    pack_halves(data.reshape(rows, -1), BLOCK_BYTES, HALF_AT, 0, groups, 2, 64, out)
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


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
def test_halves_of_units_change_their_sign(rows):
    data = blocks(rows)
    out = tiles(rows, BLOCKS)
    pack_halves(data.reshape(rows, -1), BLOCK_BYTES, HALF_AT, 0x8000, 1, 1, 32, out)
    np.testing.assert_array_equal(out, placed(-halves(data), 256, 32, out))


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
def test_bytes_of_a_unit_lie_side_by_side(rows):
    data = blocks(rows)
    out = tiles(rows, BLOCKS)
    pack_part_bytes(data.reshape(rows, -1), BLOCK_BYTES, 5, 16, 32, out)
    expected = np.zeros_like(out)
    put_parts(CODES["q6k"], expected, data[..., 5:21].view(np.int8).reshape(rows, -1))
    np.testing.assert_array_equal(out, expected)


def part_of(data, i):
    at, shift, mask, high_at, high_shift, high_mask = PARTS[i]
    return data[..., at] >> np.uint8(shift) & mask | (data[..., high_at] >> np.uint8(high_shift) & high_mask) << 4


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
def test_sixes_are_moved_by_their_parts(rows):
    data = blocks(rows)
    out = tiles(rows, BLOCKS)
    pack_sixes(data.reshape(rows, -1), np.array(PARTS), BLOCK_BYTES, 64, out)
    parts = np.stack([part_of(data, i) for i in range(16)], axis=-1).reshape(rows, BLOCKS, 4, 4)
    expected = np.zeros_like(out)
    put_parts(CODES["q4k"], expected, *(parts[..., two].reshape(rows, -1) for two in (slice(2), slice(2, 4))))
    np.testing.assert_array_equal(out, expected)
