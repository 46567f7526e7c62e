"""Triton kernels for CUDA: the op set of `..kernels` on packed tiles as they lie.

The other modules here import triton, which machines without a graphics card need not have; this one does not.
"""

from importlib.util import find_spec

from ..device import DeviceError
from ..kernels import Kernels


def triton_kernels() -> Kernels:
    """The ops as Triton kernels. Raises DeviceError where triton is not installed."""
    if find_spec("triton") is None:
        raise DeviceError("kernels for graphics cards need triton, which is not installed: pip install 'isotherm[gpu]'")
    from .kernels import TritonKernels

    return TritonKernels()
