"""Triton's products of packed matrices, in its interpreter: the bits of the CPU's kernels, for all kinds."""

import numpy as np
import pytest
import torch
from isotherm.cpu_kernels.layout import KINDS
from isotherm.gpu_kernels.tensors import Matrix
from support.device_matrices import multiplied, record_of
from support.matrices import multiply, random_matrix, random_rows
from support.torch_values import count_of, matrix_of

triton_kernels = pytest.importorskip("isotherm.gpu_kernels.triton_kernels.kernels", exc_type=ImportError)
KERNELS = triton_kernels.TritonKernels()


def far_apart(count, columns):
    """Rows of numbers of which some are far larger than others."""
    x = random_rows(count, columns)
    return (x * np.exp2(np.random.default_rng(columns).integers(-20, 20, x.shape))).astype(np.float32)


@pytest.mark.parametrize("rows, columns, tokens", [(33, 96, 17), (17, 320, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_linear_gives_the_bits_of_the_cpu(kind, rows, columns, tokens):
    matrix, x = random_matrix(kind, rows, columns), far_apart(tokens, columns)
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("tokens", [3, 5, 65])
@pytest.mark.parametrize("kind", ["q6k", "bf16"])
def test_it_does_so_for_any_number_of_tokens(kind, tokens):
    matrix, x = random_matrix(kind, 100, 64), random_rows(tokens, 64)
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", ["q4", "q4k", "q2k", "f8"])
def test_it_does_so_for_long_rows(kind):
    matrix, x = random_matrix(kind, 16, 2880), random_rows(2, 2880)
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", ["q8", "q4k", "bf16"])
def test_what_is_not_finite_is_seen_in_its_token_only(kind):
    matrix, x = random_matrix(kind, 33, 96), random_rows(3, 96)
    clean = multiplied(KERNELS, matrix, x)
    x[1, 40] = np.nan
    with np.errstate(invalid="ignore"):
        got = multiplied(KERNELS, matrix, x)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("kind, form", [("q4", "plain"), ("f16", "bf16"), ("f8", "q8"), ("bf16", "q8")])
def test_a_record_without_what_the_weights_read_is_refused(kind, form):
    matrix = random_matrix(kind, 33, 96)
    with pytest.raises(ValueError, match=rf"{kind}.* lacks"):
        KERNELS.linear(record_of(KERNELS, random_rows(1, 96), form), matrix_of(matrix), torch.empty(1, 33), count_of(1))


def test_floats_that_no_kernel_reads_are_refused():
    matrix = Matrix("f64", KINDS["f32"], 32, 64, torch.zeros(2, 1, 4096, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"no Triton kernel reads .*f64"):
        KERNELS.linear(record_of(KERNELS, random_rows(1, 64), "plain"), matrix, torch.empty(1, 32), count_of(1))
