"""Records and the norm in torch: the bits of the CPU's kernels."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.layout import padded, record_bytes
from isotherm.cpu_kernels.norm import RMS_NORM_FIELDS, rms_norm
from isotherm.gpu_kernels.reference import TorchKernels
from support.matrices import random_rows
from support.ops import run_op
from support.torch_values import count_of, empty_record, tensor

WIDTHS = [1, 16, 17, 63, 64, 65, 576, 2056]
FORMS = {"plain", "q8"}
KERNELS = TorchKernels()


@pytest.mark.parametrize("n", WIDTHS)
def test_codes_are_their_definition(n):
    x, out = random_rows(3, n), empty_record(4, n, {"q8"})
    x[0] *= np.exp2(np.random.default_rng(n).integers(-120, 60, n)).astype(np.float32)
    KERNELS.to_record(tensor(x), out, count_of(3))
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
    KERNELS.to_record(tensor(x), out, count_of(1))
    assert out.scales[0].isfinite().tolist() == [False, True]


@pytest.mark.parametrize("n", [1, 64, 100])
def test_plain_rows_are_padded_with_zeros_and_bfloats_rounded(n):
    x = random_rows(3, n)
    for form in ("plain", "bf16"):
        out = empty_record(3, n, {form})
        KERNELS.to_record(tensor(x), out, count_of(3))
        np.testing.assert_array_equal(out.plain[:, :n].float(), reference.recorded(x, form))
        assert not out.plain[:, n:].any()


@pytest.mark.parametrize("n", WIDTHS)
def test_norm_gives_the_bits_of_the_cpu(n):
    x, weight, eps = random_rows(9, n), random_rows(1, n, 1)[0], 1e-6
    plain = np.empty((9, padded(n)), np.float32)
    records = np.empty((9, record_bytes(n, "q8")), np.uint8)
    fields = {"x": x, "x_stride": x.strides[0], "n": n, "count_slot": N_TOKENS, "weight": weight, "eps": eps}
    fields |= {"plain": plain, "plain_stride": plain.strides[0]}
    fields |= {"record": records, "record_stride": records.strides[0]}
    run_op(rms_norm, RMS_NORM_FIELDS, fields, step={N_TOKENS: 9})
    out = empty_record(9, n, FORMS)
    KERNELS.rms_norm(tensor(x), tensor(weight), eps, out, count_of(9))
    np.testing.assert_array_equal(out.plain, plain)
    np.testing.assert_array_equal(out.codes, records[:, : padded(n)].view(np.int8))
    np.testing.assert_array_equal(out.scales.numpy().view(np.uint8), records[:, padded(n) :][:, : padded(n) // 16])
