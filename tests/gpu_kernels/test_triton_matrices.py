"""Triton's products and rows of packed matrices, in its interpreter: the bits of the CPU's kernels, for all kinds."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.layout import KINDS, padded
from isotherm.cpu_kernels.matmul import EMBED_FIELDS, embed
from isotherm.cpu_kernels.tiles import reader_address
from isotherm.gpu_kernels.tensors import Matrix
from support.matrices import multiply, random_matrix, random_rows
from support.ops import run_op
from support.torch_values import count_of, empty_record, matrix_of, tensor

triton_kernels = pytest.importorskip("isotherm.gpu_kernels.triton_kernels.kernels", exc_type=ImportError)
KERNELS = triton_kernels.TritonKernels()


def record_of(x, form):
    out = empty_record(len(x), x.shape[1], {form})
    KERNELS.to_record(tensor(x), out, count_of(len(x)))
    return out


def multiplied(matrix, x, onto=None, count=None, **options):
    """[T, rows]; columns of `out` beyond the rows must stay as they are."""
    rows = len(matrix.values)
    out = torch.full((len(x), rows + 9), 7.0)
    if onto is not None:
        out[:, :rows] = tensor(onto)
    count = count_of(len(x) if count is None else count)
    record = record_of(x, KINDS[matrix.kind].record)
    KERNELS.linear(record, matrix_of(matrix), out[:, :rows], count, add=onto is not None, **options)
    assert (out[:, rows:] == 7).all()
    return out[:, :rows].numpy()


def far_apart(count, columns):
    """Rows of numbers of which some are far larger than others."""
    x = random_rows(count, columns)
    return (x * np.exp2(np.random.default_rng(columns).integers(-20, 20, x.shape))).astype(np.float32)


@pytest.mark.parametrize("rows, columns, tokens", [(33, 96, 17), (17, 320, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_linear_gives_the_bits_of_the_cpu(kind, rows, columns, tokens):
    matrix, x = random_matrix(kind, rows, columns), far_apart(tokens, columns)
    np.testing.assert_array_equal(multiplied(matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("tokens", [3, 5, 65])
@pytest.mark.parametrize("kind", ["q6k", "bf16"])
def test_it_does_so_for_any_number_of_tokens(kind, tokens):
    matrix, x = random_matrix(kind, 100, 64), random_rows(tokens, 64)
    np.testing.assert_array_equal(multiplied(matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", ["q4", "q4k", "q2k", "f8"])
def test_it_does_so_for_long_rows(kind):
    matrix, x = random_matrix(kind, 16, 2880), random_rows(2, 2880)
    np.testing.assert_array_equal(multiplied(matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", ["q4m", "f32"])
def test_bias_limit_and_add(kind):
    matrix, x = random_matrix(kind, 33, 96), random_rows(9, 96)
    bias, onto = random_rows(1, 33)[0], random_rows(9, 33, 1)
    np.testing.assert_array_equal(
        multiplied(matrix, x, bias=tensor(bias), limit=0.5), multiply(matrix, x, bias=bias, clamp=0.5)
    )
    np.testing.assert_array_equal(
        multiplied(matrix, x, bias=tensor(bias), onto=onto), multiply(matrix, x, bias=bias, onto=onto)
    )


@pytest.mark.parametrize("count", [0, 4, 16])
def test_rows_beyond_the_step_are_not_touched(count):
    matrix, x = random_matrix("q4", 33, 96), random_rows(33, 96)
    got = multiplied(matrix, x, count=count)
    np.testing.assert_array_equal(got[:count], multiply(matrix, x)[:count])
    assert (got[count:] == 7).all()


@pytest.mark.parametrize("kind", ["q8", "q4k", "bf16"])
def test_what_is_not_finite_is_seen_in_its_token_only(kind):
    matrix, x = random_matrix(kind, 33, 96), random_rows(3, 96)
    clean = multiplied(matrix, x)
    x[1, 40] = np.nan
    with np.errstate(invalid="ignore"):
        got = multiplied(matrix, x)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


def test_a_matrix_of_bfloat16_rounds_float32_that_others_read():
    matrix, x = random_matrix("bf16", 33, 96), random_rows(9, 96)
    out = torch.empty(9, 33)
    KERNELS.linear(record_of(x, "plain"), matrix_of(matrix), out, count_of(9))
    np.testing.assert_array_equal(out.numpy(), multiply(matrix, x))


@pytest.mark.parametrize("kind, form", [("q4", "plain"), ("f16", "bf16"), ("f8", "q8"), ("bf16", "q8")])
def test_a_record_without_what_the_weights_read_is_refused(kind, form):
    matrix = random_matrix(kind, 33, 96)
    with pytest.raises(ValueError, match=rf"{kind}.* lacks"):
        KERNELS.linear(record_of(random_rows(1, 96), form), matrix_of(matrix), torch.empty(1, 33), count_of(1))


def test_floats_that_no_kernel_reads_are_refused():
    matrix = Matrix("f64", KINDS["f32"], 32, 64, torch.zeros(2, 1, 4096, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"no Triton kernel reads .*f64"):
        KERNELS.linear(record_of(random_rows(1, 64), "plain"), matrix, torch.empty(1, 32), count_of(1))


@pytest.mark.parametrize("kind", KINDS)
def test_embed_gives_the_bits_of_the_cpu(kind):
    matrix, tokens = random_matrix(kind, 33, 300), np.array([32, 0, 15, 17], np.int64)
    expected = np.empty((4, padded(300)), np.float32)
    fields = {"tokens": tokens, "w": matrix.tiles, "share": len(matrix.tiles), "gap": 0, "count_slot": N_TOKENS}
    fields |= {"out": expected, "out_stride": expected.strides[0], "reader": reader_address(kind)}
    fields |= {"tile_bytes": matrix.tile_bytes, "spans": matrix.fields["spans"]}
    run_op(embed, EMBED_FIELDS, fields, step={N_TOKENS: 4})
    out = torch.full((5, 300), 7.0)
    KERNELS.embed(tensor(np.append(tokens, 1)), matrix_of(matrix), out, count_of(4))
    np.testing.assert_array_equal(out[:4], expected[:, :300])
    assert (out[4] == 7).all()
