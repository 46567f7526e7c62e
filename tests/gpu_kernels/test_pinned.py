"""Pinned memory of emulated devices."""

import gc

import pytest
import torch
from isotherm.gpu_kernels.pinned import PinnedMemory


@pytest.mark.parametrize(("shape", "dtype"), [((3, 5), torch.float32), ((), torch.int64), ((7,), torch.uint8)])
def test_pinned_memory_is_zero_and_begins_a_line(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = PinnedMemory().zeros(shape, dtype)
    assert (tuple(tensor.shape), tensor.dtype, int(tensor.count_nonzero())) == (shape, dtype, 0)
    assert tensor.data_ptr() % 64 == 0


def test_it_is_known_again_in_parts_and_through_numpy() -> None:
    pinned = PinnedMemory()
    first, second = (pinned.zeros((4, 16), torch.float32) for _ in range(2))
    for tensor in (first, second):
        assert pinned.holds(tensor)
        assert pinned.holds(tensor[1:3])
        assert pinned.holds(torch.from_numpy(tensor.numpy()[3]))
    assert not pinned.holds(torch.zeros(4, 16))
    assert not PinnedMemory().holds(first)


def test_it_is_forgotten_when_nobody_holds_it() -> None:
    pinned = PinnedMemory()
    tensor = pinned.zeros((1 << 16,), torch.uint8)
    view = tensor.numpy()[5:]
    del tensor
    assert pinned.holds(torch.from_numpy(view))
    del view
    gc.collect()
    assert len(pinned) == 0


def test_a_tensor_of_no_bytes_needs_no_memory() -> None:
    pinned = PinnedMemory()
    assert pinned.holds(pinned.zeros((0, 4), torch.float32))
