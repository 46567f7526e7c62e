"""The packed layout: tiles read back by its definition and by the kernels, at the edges of groups, spans and tiles."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.layout import GROUP, KINDS, RECORDS, packed_bytes, padded, padded_rows, record_bytes
from isotherm.cpu_kernels.packing import pack_bytes, pack_headers, pack_plane
from support.matrices import line_aligned, random_matrix

SIZES = [(1, 32), (15, 64), (16, 96), (17, 160), (31, 704), (33, 32), (100, 2880)]


@pytest.mark.parametrize("rows, columns", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_tiles_read_back_by_the_layout_are_what_was_packed(kind, rows, columns):
    matrix = random_matrix(kind, rows, columns)
    np.testing.assert_allclose(reference.unpack(kind, matrix.tiles, rows, columns), matrix.values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rows, columns", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_padding_stands_for_zeros(kind, rows, columns):
    matrix = random_matrix(kind, rows, columns)
    whole = reference.unpack(kind, matrix.tiles, padded_rows(rows), padded(columns))
    assert not whole[rows:].any() and not whole[:, columns:].any()


@pytest.mark.parametrize(
    "kind, bytes_per_group",
    [
        ("f32", 128), ("f16", 64), ("bf16", 64), ("q8", 34), ("q4", 18), ("q4m", 20), ("q5", 22), ("q5m", 24),
        ("q2", 10), ("iq4", 18), ("mx4", 18), ("nv4", 20),
        ("f8", 34), ("q8b", 34), ("q4b", 18), ("q4z", 20), ("q4zb", 20),
    ],
)  # fmt: skip
def test_a_packed_matrix_keeps_the_bits_of_its_format(kind, bytes_per_group):
    assert packed_bytes(kind, 320, 704) == 320 * 704 // GROUP * bytes_per_group


@pytest.mark.parametrize(
    "kind, bytes_per_block", [("q2k", 84), ("q3k", 112), ("q4k", 144), ("q5k", 176), ("q6k", 212), ("iq4k", 136)]
)
def test_blocks_of_256_take_what_they_take_in_a_file_rounded_up_to_lines(kind, bytes_per_block):
    assert packed_bytes(kind, 320, 768) == 320 * 3 * bytes_per_block


def test_rows_are_padded_to_pairs_of_tiles_and_columns_to_units():
    assert packed_bytes("q4", 33, 65) == 4 * 2 * KINDS["q4"].unit_bytes
    assert packed_bytes("q4k", 33, 257) == 4 * 2 * KINDS["q4k"].unit_bytes


def test_records_are_whole_cache_lines():
    assert all(record_bytes(columns, form) % 64 == 0 for columns in (1, 32, 64, 96, 2880) for form in RECORDS)
    assert record_bytes(64, "q8") >= 64 + 4 + 2 * 4 + 4 * 4


def test_bytes_are_flipped_where_the_source_is_signed():
    codes = np.arange(-128, 128, dtype=np.int8).reshape(8, 32)
    tiles = line_aligned((2, 1, KINDS["q8"].unit_bytes))
    pack_headers(np.ones((8, 1), np.float16), 0, tiles)
    pack_bytes(codes.view(np.uint8), 1, 32, 0, np.uint32(0x80808080), 64, tiles)
    np.testing.assert_array_equal(reference.unpack("q8", tiles, 8, 32), codes)


def test_nibbles_are_moved_by_their_octets():
    """Block of 256: bytes 32 p .. 32 p + 31 hold group 2 p in the low and group 2 p + 1 in the high nibbles."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (17, 2, 4, 2, 32)).astype(np.uint8)  # row, block, pair, side, column
    raw = np.zeros((17, 2, 16 + 128), np.uint8)
    raw[:, :, 16:] = (codes[:, :, :, 0] | codes[:, :, :, 1] << 4).reshape(17, 2, 128)
    octets = [(16 + 32 * p + 8 * i, shift) for p in range(4) for shift in (0, 4) for i in range(4)]
    tiles = line_aligned((2, 8, KINDS["q4m"].unit_bytes))
    pack_headers(np.ones((17, 16), np.float16), 0, tiles)
    pack_plane(raw.reshape(17, -1), np.array(octets), 144, 4, 128, 1, 512, tiles)
    np.testing.assert_array_equal(reference.unpack("q4m", tiles, 17, 512), codes.reshape(17, 512))
