"""What only the emulated device knows of its memory."""

import pytest
import torch
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device import DeviceMemoryError
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated

KIB = 1 << 10


def device() -> Emulated:
    return Emulated(Spec(vram_bytes=64 * KIB))


def test_memory_that_another_program_took_is_missing() -> None:
    card = device()
    card.empty((16 * KIB,), torch.uint8)
    card.faults.taken_bytes = 60 * KIB
    with pytest.raises(DeviceMemoryError, match="60 KiB by other programs"):
        card.empty((1,), torch.uint8)
    card.faults.taken_bytes = 32 * KIB
    card.empty((16 * KIB,), torch.uint8)


def test_memory_that_was_taken_back_is_no_end_of_a_copy() -> None:
    card = device()
    there, here = card.empty((4,), torch.uint8), card.pinned((4,), torch.uint8)
    card.release(there)
    with pytest.raises(ValueError, match="was it released"):
        card.copy(there, here, "to")


def test_a_copy_has_an_end_on_the_device() -> None:
    card = device()
    with pytest.raises(ValueError, match="neither end"):
        card.copy(card.pinned((4,), torch.uint8), torch.zeros(4, dtype=torch.uint8), "to")


def test_copies_reach_locked_memory_without_a_detour() -> None:
    clock = Clock()
    card, other = (Emulated(Spec(to_gb_s=1.0, hop_us=0.0, number=number), clock=clock) for number in range(2))
    here, there = torch.ones(10_000, dtype=torch.uint8), card.empty((10_000,), torch.uint8)
    for device in (card, other):
        assert device.lock(here)
    card.copy(there, here[:], "to")
    assert card.now() == 0.0  # the host does not wait
    card.unlock(here)
    card.copy(there[:10], here[50:60], "to")
    assert card.now() == pytest.approx(0.0)
    other.unlock(here)
    card.copy(there, here, "to")
    assert card.now() > 0.0
