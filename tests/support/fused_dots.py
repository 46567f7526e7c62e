"""Products of float32 tiles in Triton's interpreter as a card computes them.

NumPy would sum them in an order of its own. On a card each number of the product is a chain of fused multiply-adds
along the inner dimension, which begins with what is added to.
"""

from typing import Any

import numpy as np
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_dot = InterpreterBuilder.create_dot


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
