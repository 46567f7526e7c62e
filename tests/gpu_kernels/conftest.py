"""What all tests of this package run with."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tensors here are tiny: handing them to other threads costs more than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
