"""The ops of `kernels` in torch: what Triton's are tested against, and what the emulated accelerator runs.

They give the bits of the CPU's kernels: integers are summed exactly, floats in the same order, and what is fused there
is rounded once here (`fused`).
"""

from .kernels import TorchKernels

__all__ = ["TorchKernels"]
