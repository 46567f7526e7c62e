"""Triton's records of activations, in its interpreter: the bits of their definition."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from support.matrices import random_rows
from support.torch_values import count_of, empty_record, tensor

triton_kernels = pytest.importorskip("isotherm.gpu_kernels.triton_kernels.kernels", exc_type=ImportError)
KERNELS = triton_kernels.TritonKernels()
WIDTHS = [1, 17, 64, 65, 576]


@pytest.mark.parametrize("n", WIDTHS)
def test_codes_are_their_definition(n):
    x, out = random_rows(3, n), empty_record(4, n, {"q8"})
    x[0] *= np.exp2(np.random.default_rng(n).integers(-120, 60, n)).astype(np.float32)
    KERNELS.to_record(tensor(np.vstack([x, x[:1]])), out, count_of(3))
    for row, codes, scales in zip(x, out.codes, out.scales, strict=False):
        expected = reference.quantise(row)
        np.testing.assert_array_equal(codes.numpy(), expected[0])
        np.testing.assert_array_equal(scales.numpy(), expected[1])
    assert (out.codes[3] == 7).all() and (out.scales[3] == 7).all()


def test_halves_are_rounded_to_even():
    x, out = np.zeros((1, 32), np.float32), empty_record(1, 32, {"q8"})
    x[0, :5] = [127, 0.5, 1.5, -0.5, -2.5]
    KERNELS.to_record(tensor(x), out, count_of(1))
    np.testing.assert_array_equal(out.codes[0, :5], [127, 0, 2, 0, -2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_the_scale_of_its_span_only(bad):
    x, out = random_rows(1, 128), empty_record(1, 128, {"q8"})
    x[0, 7] = bad
    with np.errstate(invalid="ignore"):
        KERNELS.to_record(tensor(x), out, count_of(1))
    assert out.scales[0].isfinite().tolist() == [False, True]


@pytest.mark.parametrize("form", ["plain", "bf16"])
@pytest.mark.parametrize("n", WIDTHS)
def test_plain_rows_are_padded_with_zeros_and_bfloats_rounded(n, form):
    x, out = random_rows(3, n), empty_record(3, n, {form})
    KERNELS.to_record(tensor(x), out, count_of(3))
    np.testing.assert_array_equal(out.plain[:, :n].float(), reference.recorded(x, form))
    assert not out.plain[:, n:].any()


def test_a_record_has_all_its_forms_at_once():
    x, both = random_rows(2, 100), empty_record(2, 100, {"plain", "q8"})
    plain, codes = empty_record(2, 100, {"plain"}), empty_record(2, 100, {"q8"})
    for out in (both, plain, codes):
        KERNELS.to_record(tensor(x), out, count_of(2))
    np.testing.assert_array_equal(both.plain, plain.plain)
    np.testing.assert_array_equal(both.codes, codes.codes)
    np.testing.assert_array_equal(both.scales, codes.scales)


def test_a_nan_stays_one_as_bfloat16():
    x, out = np.zeros((1, 64), np.float32), empty_record(1, 64, {"bf16"})
    x[0, :2] = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    KERNELS.to_record(tensor(x), out, count_of(1))
    assert out.plain[0].isnan().tolist() == [True, True] + [False] * 62
