"""Products and rows of packed matrices in torch: the bits of the CPU's kernels, for all kinds."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.descriptor import N_TOKENS
from isotherm.cpu_kernels.layout import KINDS, padded
from isotherm.cpu_kernels.matmul import EMBED_FIELDS, embed
from isotherm.cpu_kernels.tiles import reader_address
from isotherm.gpu_kernels.reference import TorchKernels, matrices
from isotherm.gpu_kernels.reference.unpack import unpack
from support.matrices import multiply, random_matrix, random_rows
from support.ops import run_op
from support.torch_values import count_of, empty_record, matrix_of, tensor

SIZES = [(1, 32, 1), (33, 96, 9), (100, 704, 17), (17, 2880, 2)]  # rows, columns, tokens
KERNELS = TorchKernels()


def record_of(x, kind):
    out = empty_record(len(x), x.shape[1], {KINDS[kind].record})
    KERNELS.to_record(tensor(x), out, count_of(len(x)))
    return out


def multiplied(matrix, x, onto=None, count=None, **options):
    out = torch.full((len(x), len(matrix.values)), 7.0) if onto is None else tensor(onto.copy())
    count = count_of(len(x) if count is None else count)
    KERNELS.linear(record_of(x, matrix.kind), matrix_of(matrix), out, count, add=onto is not None, **options)
    return out.numpy()


@pytest.mark.parametrize("rows, columns, tokens", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_linear_gives_the_bits_of_the_cpu(kind, rows, columns, tokens):
    matrix, x = random_matrix(kind, rows, columns), random_rows(tokens, columns)
    np.testing.assert_array_equal(multiplied(matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_does_for_numbers_that_are_far_apart(kind):
    matrix, x = random_matrix(kind, 33, 704), random_rows(9, 704)
    x = (x * np.exp2(np.random.default_rng(1).integers(-30, 30, x.shape))).astype(np.float32)
    np.testing.assert_array_equal(multiplied(matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", ["q4", "q5k", "f16", "bf16", "f8"])
def test_a_large_product_is_computed_in_parts_alike(kind, monkeypatch):
    matrix, x = random_matrix(kind, 100, 160), random_rows(5, 160)
    whole = multiplied(matrix, x)
    monkeypatch.setattr(matrices, "_AT_ONCE", 2 * 5 * 192)
    np.testing.assert_array_equal(multiplied(matrix, x), whole)


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


def test_rows_beyond_the_step_are_not_touched():
    matrix, x = random_matrix("q4", 33, 96), random_rows(9, 96)
    got = multiplied(matrix, x, count=4)
    np.testing.assert_array_equal(got[:4], multiply(matrix, x)[:4])
    assert (got[4:] == 7).all()


def test_a_matrix_of_bfloat16_rounds_float32_that_others_read():
    matrix, x = random_matrix("bf16", 33, 96), random_rows(9, 96)
    plain, out = empty_record(9, 96, {"plain"}), torch.empty(9, 33)
    KERNELS.to_record(tensor(x), plain, count_of(9))
    KERNELS.linear(plain, matrix_of(matrix), out, count_of(9))
    np.testing.assert_array_equal(out.numpy(), multiply(matrix, x))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["q4", "q4k", "f32", "bf16", "f8"])
def test_what_is_not_finite_is_seen_in_its_token_only(kind, bad):
    matrix, x = random_matrix(kind, 33, 96), random_rows(3, 96)
    x[1, 40] = bad
    np.testing.assert_array_equal(multiplied(matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("columns", [32, 96, 704])
@pytest.mark.parametrize("kind", KINDS)
def test_unpacked_weights_are_their_definition(kind, columns):
    matrix = random_matrix(kind, 33, columns)
    weights = unpack(matrix_of(matrix), tensor(matrix.tiles)).dense().numpy().T
    np.testing.assert_array_equal(weights[:33, :columns], reference.unpack(kind, matrix.tiles, 33, columns))


@pytest.mark.parametrize("columns", [32, 96, 704])
@pytest.mark.parametrize("kind", KINDS)
def test_embed_gives_the_bits_of_the_cpu(kind, columns):
    matrix, tokens = random_matrix(kind, 33, columns), np.array([32, 0, 15, 16, 31, 0, 17])
    expected = np.empty((len(tokens), padded(columns)), np.float32)
    fields = {"tokens": tokens, "w": matrix.tiles, "share": len(matrix.tiles), "gap": 0, "count_slot": N_TOKENS}
    fields |= {"out": expected, "out_stride": expected.strides[0], "reader": reader_address(kind)}
    fields |= {"tile_bytes": matrix.tile_bytes, "spans": matrix.fields["spans"]}
    run_op(embed, EMBED_FIELDS, fields, step={N_TOKENS: len(tokens)})
    out = torch.full((8, columns), 7.0)
    KERNELS.embed(tensor(np.append(tokens, 0)), matrix_of(matrix), out, count_of(7))
    np.testing.assert_array_equal(out[:7].numpy(), expected[:, :columns])
    assert (out[7] == 7).all()
