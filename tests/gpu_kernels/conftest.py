"""What all tests of this package run with."""

import pytest
import torch
from support.fused_dots import fused_dot, fused_fma
from triton.runtime.interpreter import InterpreterBuilder


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tensors here are tiny: handing them to other threads costs more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="package")
def fused():
    """Whatever the version of Triton's interpreter, and of the library by which NumPy multiplies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_fma", fused_fma)
        patch.setattr(InterpreterBuilder, "create_dot", fused_dot)
        yield
