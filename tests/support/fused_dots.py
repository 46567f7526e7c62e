"""Fused multiply-adds and products of float32 tiles in Triton's interpreter as a card computes them.

Some of its versions round a product before they add to it. And NumPy would sum products of tiles in an order of its
own: on a card each number of them is a chain of fused multiply-adds along the inner dimension, which begins with what
is added to.
"""

from typing import Any

import numpy as np
import torch
from isotherm.gpu_kernels.reference import fused
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot = InterpreterBuilder.create_dot


def fused_fma(_: InterpreterBuilder, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
    """In place of `InterpreterBuilder.create_fma`, of float32."""
    terms = np.broadcast_arrays(x.data, y.data, z.data)
    rounded = fused.fma(*(torch.from_numpy(np.array(term, np.float32)) for term in terms))
    return TensorHandle(rounded.numpy(), z.dtype.scalar)


def fused_dot(
    builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, total: TensorHandle, *options: Any
) -> TensorHandle:
    """In place of `InterpreterBuilder.create_dot`."""
    if total.data.dtype != np.float32:
        return _dot(builder, a, b, total, *options)
    for step in range(a.data.shape[1]):
        column, row = (TensorHandle(x, total.dtype) for x in (a.data[:, step : step + 1], b.data[step : step + 1]))
        total = builder.create_fma(column, row, total)
    return total
