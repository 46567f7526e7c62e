"""Products of packed matrices by a set of kernels for accelerators."""

from typing import Any

import numpy as np
import torch
from isotherm.cpu_kernels.layout import KINDS
from isotherm.gpu_kernels.kernels import Kernels
from isotherm.gpu_kernels.tensors import Record

from .matrices import Matrix
from .torch_values import count_of, empty_record, matrix_of, tensor


def record_of(kernels: Kernels, x: np.ndarray, form: str) -> Record:
    out = empty_record(len(x), x.shape[1], {form})
    kernels.to_record(tensor(x), out, count_of(len(x)))
    return out


def multiplied(
    kernels: Kernels,
    matrix: Matrix,
    x: np.ndarray,
    onto: np.ndarray | None = None,
    count: int | None = None,
    **options: Any,
) -> np.ndarray:
    """[T, rows]; columns of `out` beyond the rows must stay as they are."""
    rows = len(matrix.values)
    out = torch.full((len(x), rows + 9), 7.0)
    if onto is not None:
        out[:, :rows] = tensor(onto)
    tokens = count_of(len(x) if count is None else count)
    record = record_of(kernels, x, KINDS[matrix.kind].record)
    kernels.linear(record, matrix_of(matrix), out[:, :rows], tokens, add=onto is not None, **options)
    assert (out[:, rows:] == 7).all()
    return out[:, :rows].numpy()
