"""Ops by torch and by Triton in its interpreter, alike: the bits of the CPU's kernels."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.layout import KINDS, padded
from isotherm.cpu_kernels.matmul import EMBED_FIELDS, embed
from isotherm.cpu_kernels.tiles import reader_address
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.gpu_kernels.triton_kernels import triton_kernels
from support.device_matrices import multiplied, record_of
from support.drawing import drawn
from support.experts_sum import combined
from support.matrices import multiply, random_matrix, random_rows
from support.ops import run_op
from support.torch_values import count_of, empty_record, matrix_of, tensor

WIDTHS = [1, 16, 17, 63, 64, 65, 576, 2056]


@pytest.fixture(params=[TorchKernels, triton_kernels], ids=["torch", "triton"])
def kernels(request):
    with np.errstate(all="ignore"):  # as a card does
        yield request.param()


@pytest.mark.parametrize("n", WIDTHS)
def test_codes_are_their_definition(kernels, n):
    x, out = random_rows(3, n), empty_record(4, n, {"q8"})
    x[0] *= np.exp2(np.random.default_rng(n).integers(-120, 60, n)).astype(np.float32)
    kernels.to_record(tensor(np.vstack([x, x[:1]])), out, count_of(3))
    for row, codes, scales in zip(x, out.codes, out.scales, strict=False):
        expected = reference.quantise(row)
        np.testing.assert_array_equal(codes.numpy(), expected[0])
        np.testing.assert_array_equal(scales.numpy(), expected[1])
    assert (out.codes[3] == 7).all() and (out.scales[3] == 7).all()


def test_halves_are_rounded_to_even(kernels):
    x, out = np.zeros((1, 32), np.float32), empty_record(1, 32, {"q8"})
    x[0, :5] = [127, 0.5, 1.5, -0.5, -2.5]
    kernels.to_record(tensor(x), out, count_of(1))
    np.testing.assert_array_equal(out.codes[0, :5], [127, 0, 2, 0, -2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_the_scale_of_its_span_only(kernels, bad):
    x, out = random_rows(1, 128), empty_record(1, 128, {"q8"})
    x[0, 7] = bad
    kernels.to_record(tensor(x), out, count_of(1))
    assert out.scales[0].isfinite().tolist() == [False, True]


@pytest.mark.parametrize("form", ["plain", "bf16"])
@pytest.mark.parametrize("n", [1, 17, 64, 100, 576])
def test_plain_rows_are_padded_with_zeros_and_bfloats_rounded(kernels, n, form):
    x, out = random_rows(3, n), empty_record(3, n, {form})
    kernels.to_record(tensor(x), out, count_of(3))
    np.testing.assert_array_equal(out.plain[:, :n].float(), reference.recorded(x, form))
    assert not out.plain[:, n:].any()


def test_a_record_has_all_its_forms_at_once(kernels):
    x, both = random_rows(2, 100), empty_record(2, 100, {"plain", "q8"})
    plain, codes = empty_record(2, 100, {"plain"}), empty_record(2, 100, {"q8"})
    for out in (both, plain, codes):
        kernels.to_record(tensor(x), out, count_of(2))
    np.testing.assert_array_equal(both.plain, plain.plain)
    np.testing.assert_array_equal(both.codes, codes.codes)
    np.testing.assert_array_equal(both.scales, codes.scales)


def test_a_nan_stays_one_as_bfloat16(kernels):
    x, out = np.zeros((1, 64), np.float32), empty_record(1, 64, {"bf16"})
    x[0, :2] = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    kernels.to_record(tensor(x), out, count_of(1))
    assert out.plain[0].isnan().tolist() == [True, True] + [False] * 62


@pytest.mark.parametrize("kind", ["q4m", "f32"])
def test_bias_limit_and_add(kernels, kind):
    matrix, x = random_matrix(kind, 33, 96), random_rows(9, 96)
    bias, onto = random_rows(1, 33)[0], random_rows(9, 33, 1)
    np.testing.assert_array_equal(
        multiplied(kernels, matrix, x, bias=tensor(bias), limit=0.5), multiply(matrix, x, bias=bias, clamp=0.5)
    )
    np.testing.assert_array_equal(
        multiplied(kernels, matrix, x, bias=tensor(bias), onto=onto), multiply(matrix, x, bias=bias, onto=onto)
    )


@pytest.mark.parametrize("count", [0, 4, 16])
def test_rows_beyond_the_step_are_not_touched(kernels, count):
    matrix, x = random_matrix("q4", 33, 96), random_rows(33, 96)
    got = multiplied(kernels, matrix, x, count=count)
    np.testing.assert_array_equal(got[:count], multiply(matrix, x)[:count])
    assert (got[count:] == 7).all()


def test_a_matrix_of_bfloat16_rounds_float32_that_others_read(kernels):
    matrix, x = random_matrix("bf16", 33, 96), random_rows(9, 96)
    out = torch.empty(9, 33)
    kernels.linear(record_of(kernels, x, "plain"), matrix_of(matrix), out, count_of(9))
    np.testing.assert_array_equal(out.numpy(), multiply(matrix, x))


@pytest.mark.parametrize("columns", [32, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_embed_gives_the_bits_of_the_cpu(kernels, kind, columns):
    matrix, tokens = random_matrix(kind, 33, columns), np.array([32, 0, 15, 16, 17])
    expected = np.empty((len(tokens), padded(columns)), np.float32)
    fields = {"tokens": tokens, "w": matrix.tiles, "share": len(matrix.tiles), "gap": 0, "count_slot": N_TOKENS}
    fields |= {"out": expected, "out_stride": expected.strides[0], "reader": reader_address(kind)}
    fields |= {"tile_bytes": matrix.tile_bytes, "spans": matrix.fields["spans"]}
    run_op(embed, EMBED_FIELDS, fields, step={N_TOKENS: len(tokens)})
    out = torch.full((6, columns), 7.0)
    kernels.embed(tensor(np.append(tokens, 1)), matrix_of(matrix), out, count_of(5))
    np.testing.assert_array_equal(out[:5].numpy(), expected[:, :columns])
    assert (out[5] == 7).all()


@pytest.mark.parametrize("top_k", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 17, 100])
def test_combine_gives_the_bits_of_the_cpu(kernels, n, top_k):
    rng = np.random.default_rng([n, top_k])
    x, outs = (rng.standard_normal((rows, n), np.float32) for rows in (9, 9 * top_k))
    weights = rng.random((9, top_k), np.float32)
    weights[::2] /= weights[::2].sum(axis=1, keepdims=True)
    got = tensor(np.concatenate([x, x[:1]]))
    kernels.combine(got, tensor(outs), tensor(weights), None, count_of(9))
    np.testing.assert_array_equal(got[:9], combined(x, outs, np.arange(9 * top_k), weights))
    np.testing.assert_array_equal(got[9], x[0])


def test_combine_of_a_shared_expert_and_of_a_dense_branch(kernels):
    x, outs, gate = random_rows(9, 40), random_rows(9, 40, 1), np.linspace(-100, 20, 9, dtype=np.float32)
    for gates in (None, gate):
        got = tensor(x.copy())
        kernels.combine(got, tensor(outs), None, None if gates is None else tensor(gates), count_of(9))
        expected = combined(x, outs, np.arange(9), gate=None if gates is None else gates[:, None])
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("rule", [{"temperature": 0.0}, {"temperature": 1.0}], ids=str)
def test_a_row_that_is_not_finite_gets_no_token(kernels, rule):
    logits = np.zeros((4, 10), np.float32)
    logits[0, 4], logits[1, 9], logits[2] = np.nan, np.inf, -np.inf
    logits[3, 6] = 90.0
    assert drawn(kernels, logits, [rule] * 4, np.full(4, 0.5)) == [-1, -1, -1, 6]
