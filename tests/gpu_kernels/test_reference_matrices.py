"""Products of packed matrices in torch: the bits of the CPU's kernels, for all kinds."""

import numpy as np
import pytest
from isotherm.cpu_kernels import reference
from isotherm.cpu_kernels.layout import KINDS
from isotherm.gpu_kernels.reference import TorchKernels, matrices
from isotherm.gpu_kernels.reference.unpack import unpack
from support.device_matrices import multiplied
from support.matrices import multiply, random_matrix, random_rows
from support.torch_values import matrix_of, tensor

SIZES = [(1, 32, 1), (33, 96, 9), (100, 704, 17), (17, 2880, 2)]  # rows, columns, tokens
KERNELS = TorchKernels()


@pytest.mark.parametrize("rows, columns, tokens", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_linear_gives_the_bits_of_the_cpu(kind, rows, columns, tokens):
    matrix, x = random_matrix(kind, rows, columns), random_rows(tokens, columns)
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_does_for_numbers_that_are_far_apart(kind):
    matrix, x = random_matrix(kind, 33, 704), random_rows(9, 704)
    x = (x * np.exp2(np.random.default_rng(1).integers(-30, 30, x.shape))).astype(np.float32)
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("kind", ["q4", "q5k", "f16", "bf16", "f8"])
def test_a_large_product_is_computed_in_parts_alike(kind, monkeypatch):
    matrix, x = random_matrix(kind, 100, 160), random_rows(5, 160)
    whole = multiplied(KERNELS, matrix, x)
    monkeypatch.setattr(matrices, "_AT_ONCE", 2 * 5 * 192)
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), whole)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["q4", "q4k", "f32", "bf16", "f8"])
def test_what_is_not_finite_is_seen_in_its_token_only(kind, bad):
    matrix, x = random_matrix(kind, 33, 96), random_rows(3, 96)
    x[1, 40] = bad
    np.testing.assert_array_equal(multiplied(KERNELS, matrix, x), multiply(matrix, x))


@pytest.mark.parametrize("columns", [32, 96, 704])
@pytest.mark.parametrize("kind", KINDS)
def test_unpacked_weights_are_their_definition(kind, columns):
    matrix = random_matrix(kind, 33, columns)
    weights = unpack(matrix_of(matrix), tensor(matrix.tiles)).dense().numpy().T
    np.testing.assert_array_equal(weights[:33, :columns], reference.unpack(kind, matrix.tiles, 33, columns))
