"""How Triton kernels are compiled: the one place that does it, as `cpu_kernels.jit` is for the CPU."""

from collections.abc import Callable
from typing import Any

import triton

# What every launch says. The CPU rounds products before it adds them, except where it fuses the two itself: so the
# compiler must not fuse on its own, and `tl.fma` stands where it should.
EXACT = {"enable_fp_fusion": False}


def kernel(function: Callable[..., Any]) -> Any:
    """Make a Triton kernel, or what kernels call; arguments and results of those are the compiler's to infer."""
    return triton.jit(function)
