"""RMS norm and activation quantisation against their definitions, at the edges of groups and spans."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from isotherm.cpu_kernels.layout import padded, record_bytes
from isotherm.cpu_kernels.norm import (
    QUANTISE_FIELDS,
    RMS_NORM_FIELDS,
    quantise,
    rms_norm,
    round_rows,
)
from support.ops import run_op

WIDTHS = [1, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 576, 2056]
EPS = 1e-6


def random_rows(rows, n, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, n), np.float32)


def split(record, n):
    """A q8 record's codes, scales, and sums by 32 and by 16."""
    width = padded(n)
    ends = np.cumsum([width, width // 16, width // 8, width // 4])
    parts = np.split(record[: ends[-1]], ends[:-1])
    return [part.view(kind) for part, kind in zip(parts, (np.int8, np.float32, np.int32, np.int32), strict=True)]


def quantised(x, **options):
    size = record_bytes(x.shape[1], "q8")
    records = np.full((len(x), size), 0xAA, np.uint8)
    fields = {"x": x, "x_stride": x.strides[0], "n": x.shape[1], "record": records}
    run_op(quantise, QUANTISE_FIELDS, fields | {"record_stride": size}, step={N_TOKENS: len(x)}, **options)
    return records


def normed(x, weight, rows=None, **options):
    """(plain, records) of the kernel."""
    n = x.shape[1]
    count = len(x) if rows is None else len(rows)
    plain = np.full((count, padded(n)), np.nan, np.float32)
    records = np.full((count, record_bytes(n, "q8")), 0xAA, np.uint8)
    fields = {"x": x, "x_stride": x.strides[0], "n": n, "count_slot": N_LOGITS}
    fields |= {"record": records, "record_stride": records.strides[0], "weight": weight, "eps": EPS}
    fields |= {"plain": plain, "plain_stride": plain.strides[0], "rows": 0 if rows is None else rows}
    run_op(rms_norm, RMS_NORM_FIELDS, fields, step={N_LOGITS: count}, **options)
    return plain, records


def bfloats(x, **options):
    """bf16 records as uint16."""
    records = np.full((len(x), padded(x.shape[1])), 0xAAAA, np.uint16)
    fields = {"x": x, "x_stride": x.strides[0], "n": x.shape[1], "record": records}
    run_op(
        round_rows, QUANTISE_FIELDS, fields | {"record_stride": records.strides[0]}, step={N_TOKENS: len(x)}, **options
    )
    return records


@pytest.mark.parametrize("n", WIDTHS)
def test_norm_is_its_definition_and_pads_with_zeros(n):
    x, weight = random_rows(3, n), random_rows(1, n, 1)[0]
    plain, _ = normed(x, weight)
    np.testing.assert_allclose(plain[:, :n], reference.rms_norm(x, weight, EPS), rtol=2e-6, atol=1e-7)
    assert not plain[:, n:].any()


@pytest.mark.parametrize("n", WIDTHS)
def test_norm_record_is_the_quantised_plain_row(n):
    plain, records = normed(random_rows(3, n), random_rows(1, n, 1)[0])
    for row, record in zip(plain, records, strict=True):
        for got, expected in zip(split(record, n), reference.quantise(row[:n]), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_norm_takes_the_rows_it_is_told():
    x, weight = random_rows(5, 40), random_rows(1, 40, 1)[0]
    plain, _ = normed(x, weight, rows=np.array([4, 0, 4]))
    np.testing.assert_array_equal(plain, normed(x, weight)[0][[4, 0, 4]])


def test_norm_leaves_out_an_output_that_is_not_asked_for():
    x = random_rows(2, 32)
    plain = np.zeros((2, 64), np.float32)
    fields = {"x": x, "x_stride": 128, "n": 32, "weight": np.ones(32, np.float32), "eps": EPS}
    run_op(rms_norm, RMS_NORM_FIELDS, fields | {"plain": plain, "plain_stride": 256}, step={N_TOKENS: 2})
    np.testing.assert_array_equal(plain, normed(x, np.ones(32, np.float32))[0])


def test_norm_of_a_row_depends_neither_on_company_nor_on_threads():
    x, weight = random_rows(33, 100), random_rows(1, 100, 1)[0]
    plain, records = normed(x, weight, threads=2)
    for row in range(33):
        alone = normed(x[row : row + 1], weight)
        np.testing.assert_array_equal(plain[row], alone[0][0])
        np.testing.assert_array_equal(records[row, : padded(100) * 5 // 4], alone[1][0, : padded(100) * 5 // 4])


@pytest.mark.parametrize("n", WIDTHS)
def test_quantise_is_its_definition(n):
    x = random_rows(2, n, n)
    for row, record in zip(x, quantised(x), strict=True):
        for got, expected in zip(split(record, n), reference.quantise(row), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_quantise_rounds_halves_to_even():
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, 0.5, 1.5, -0.5, -2.5]
    np.testing.assert_array_equal(split(quantised(x)[0], 32)[0][:5], [127, 0, 2, 0, -2])


@pytest.mark.parametrize("value", [0.0, 1e-44, 1e-38, 1e-31])
def test_a_span_of_almost_nothing_is_zero(value):
    assert not any(part.any() for part in split(quantised(np.full((1, 64), value, np.float32))[0], 64))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_the_scale_of_its_span_only(bad):
    x = random_rows(1, 128)
    x[0, 7] = bad
    codes, scales, *_ = split(quantised(x)[0], 128)
    assert not np.isfinite(scales[0]) and np.isfinite(scales[1])
    assert codes.min() >= -127


@pytest.mark.parametrize("n", WIDTHS)
def test_bfloats_are_their_definition_and_pad_with_zeros(n):
    x = random_rows(3, n, n)
    got = bfloats(x, threads=2)
    np.testing.assert_array_equal(got[:, :n], reference.bfloat_bits(x))
    assert not got[:, n:].any()


@pytest.mark.parametrize(
    "bits, expected",
    [
        (0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81), (0x3F817FFF, 0x3F81), (0xBF818000, 0xBF82),
        (0x00008001, 0x0001), (0x7F7FFFFF, 0x7F80), (0xFF800000, 0xFF80), (0x7F800001, 0x7FC0), (0xFFFFFFFF, 0xFFFF),
    ],
)  # fmt: skip
def test_bfloats_are_the_nearest_with_ties_to_even(bits, expected):
    """Also what is denormal, overflows, is infinite or not a number."""
    x = np.full((1, 32), bits, np.uint32).view(np.float32)
    assert (bfloats(x)[0, :32] == expected).all()
    assert (reference.bfloat_bits(x) == expected).all()


@pytest.mark.parametrize("n", WIDTHS)
def test_norm_rounds_its_plain_row_to_bfloats(n):
    x, weight = random_rows(3, n), random_rows(1, n, 1)[0]
    records = np.full((3, padded(n)), 0xAAAA, np.uint16)
    fields = {"x": x, "x_stride": x.strides[0], "n": n, "weight": weight, "eps": EPS}
    fields |= {"bfloat": records, "bfloat_stride": records.strides[0]}
    run_op(rms_norm, RMS_NORM_FIELDS, fields, step={N_TOKENS: 3})
    np.testing.assert_array_equal(records, reference.bfloat_bits(normed(x, weight)[0]))
