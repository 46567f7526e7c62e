"""Slots: what is loaded counts when it has come, what is evicted is gone, and the tables always agree."""

from collections.abc import Iterator

import pytest
from isotherm.experts.bank import Bank
from isotherm.experts.pack import PackedWeights
from isotherm.experts.residency import Residency
from isotherm.gpu_kernels.device import DeviceLostError, DeviceMemoryError
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.tensors import SENTINEL
from isotherm.placement.shape import CPU
from support.expert_weights import EXPERTS, SIZE, expert_weights
from support.hybrid import emulated, swap

LAYERS = (0, 2)  # layer 1 is dense


@pytest.fixture
def weights() -> PackedWeights:
    return expert_weights(LAYERS)


@pytest.fixture
def accelerators() -> tuple[Emulated, ...]:
    return emulated(1 << 20, 1 << 20, late=1)


@pytest.fixture
def residency(weights: PackedWeights, accelerators: tuple[Emulated, ...]) -> Iterator[Residency]:
    """Layer 0 has two slots on the first accelerator; layer 2 one on each."""
    made = Residency(weights, 3, accelerators)
    made.reserve(0, 0, 2)
    made.reserve(2, 0, 1)
    made.reserve(2, 1, 1)
    yield made
    made.close()
    assert [accelerator.used_bytes for accelerator in accelerators] == [0, 0]


def bank(residency: Residency, layer: int, device: int) -> Bank:
    found = residency.bank(layer, device)
    assert found is not None
    return found


def test_an_expert_is_resident_once_its_copy_is_done(residency: Residency, accelerators: tuple[Emulated, ...]) -> None:
    residency.load(0, 3, 0)
    assert residency.settle() == 1 and residency.where[0][3] == CPU
    assert bank(residency, 0, 0).experts == [SENTINEL, SENTINEL] and residency.free_slots(0, 0) == 1
    accelerators[0].clock.advance(1.0)
    assert residency.settle() == 0 and residency.where[0][3] == 0
    assert bank(residency, 0, 0).experts == [3, SENTINEL]
    residency.check_integrity()


def test_each_slot_takes_one(residency: Residency) -> None:
    for expert in (4, 1):
        residency.load(0, expert, 0)
    with pytest.raises(ValueError, match="no free slot"):
        residency.load(0, 2, 0)
    with pytest.raises(ValueError, match="no free slot"):
        residency.load(0, 2, 1)
    residency.settle(wait=True)
    assert residency.where[0].tolist() == [CPU, 0, CPU, CPU, 0]
    residency.check_integrity()


def test_an_expert_is_loaded_once(residency: Residency) -> None:
    residency.load(2, 1, 0)
    with pytest.raises(ValueError, match="already"):
        residency.load(2, 1, 1)
    residency.settle(wait=True)
    with pytest.raises(ValueError, match="already"):
        residency.load(2, 1, 1)


def test_what_is_evicted_makes_room(residency: Residency) -> None:
    residency.load(2, 1, 1)
    residency.settle(wait=True)
    residency.evict(2, 1)
    assert residency.where[2][1] == CPU and residency.free_slots(2, 1) == 1
    residency.check_integrity()
    residency.load(2, 0, 1)
    residency.settle(wait=True)
    assert residency.where[2].tolist() == [1, CPU, CPU, CPU, CPU]
    residency.check_integrity()
    with pytest.raises(ValueError, match="not on an accelerator"):
        residency.evict(2, 1)


def test_a_swap_takes_the_slot_of_the_demoted(residency: Residency) -> None:
    for expert in (0, 1):
        residency.load(0, expert, 0)
    residency.settle(wait=True)
    residency.swap([swap(0, 0, promoted=4, demoted=0)])
    assert residency.where[0].tolist() == [CPU, 0, CPU, CPU, CPU]
    residency.check_integrity()
    residency.settle(wait=True)
    assert bank(residency, 0, 0).experts == [4, 1]
    residency.check_integrity()


def test_a_swap_that_does_not_fit_changes_nothing(residency: Residency) -> None:
    residency.load(0, 0, 0)
    residency.load(2, 0, 1)
    residency.settle(wait=True)
    good = swap(0, 0, promoted=1, demoted=0)
    for bad in (swap(2, 0, promoted=1, demoted=0), swap(2, 1, promoted=0, demoted=0), swap(2, 1, 2, 1)):
        with pytest.raises(ValueError, match="expert"):
            residency.swap([good, bad])
    assert bank(residency, 0, 0).experts[0] == 0 and bank(residency, 2, 1).experts == [0]
    assert residency.settle() == 0


def test_what_is_pinned_stays(residency: Residency) -> None:
    residency.load(0, 0, 0)
    residency.settle(wait=True)
    residency.pin(0, 0)
    with pytest.raises(ValueError, match="pinned"):
        residency.evict(0, 0)
    with pytest.raises(ValueError, match="pinned"):
        residency.swap([swap(0, 0, promoted=1, demoted=0)])
    residency.pin(0, 0, False)
    residency.evict(0, 0)


def test_bytes_are_those_of_slots_and_tables(residency: Residency, accelerators: tuple[Emulated, ...]) -> None:
    assert residency.nbytes(0) == 3 * 3 * SIZE + 2 * 4 * EXPERTS
    assert residency.nbytes(1) == 3 * SIZE + 4 * EXPERTS
    assert [accelerator.used_bytes for accelerator in accelerators] == [residency.nbytes(0), residency.nbytes(1)]


def test_slots_that_do_not_fit_take_nothing(residency: Residency, accelerators: tuple[Emulated, ...]) -> None:
    used = accelerators[1].used_bytes
    accelerators[1].set_limit(used + 2 * SIZE)
    with pytest.raises(DeviceMemoryError):
        residency.reserve(0, 1, 1)
    assert accelerators[1].used_bytes == used


def test_an_expert_whose_copy_fails_stays_on_the_cpu(residency: Residency, accelerators: tuple[Emulated, ...]) -> None:
    residency.load(0, 1, 0)
    residency.settle(wait=True)
    accelerators[0].faults.fail("copy", after=1)
    residency.load(0, 2, 0)
    residency.load(2, 2, 1)
    with pytest.raises(DeviceLostError):
        residency.settle(wait=True)
    accelerators[0].reset()
    assert residency.where[0].tolist() == [CPU, 0, CPU, CPU, CPU] and residency.free_slots(0, 0) == 1
    assert residency.where[2][2] == 1
    residency.check_integrity()


@pytest.mark.parametrize("what", ["weights", "table", "where", "twice"])
def test_the_check_finds(what: str, residency: Residency) -> None:
    for layer, expert in ((0, 0), (2, 3)):
        residency.load(layer, expert, 0)
    residency.settle(wait=True)
    residency.check_integrity()
    if what == "weights":
        bank(residency, 2, 0).matrices[1].tiles[0, 1, 0, 9] ^= 1
    elif what == "table":
        bank(residency, 2, 0).table[4] = 0
    elif what == "where":
        residency.where[2][3] = CPU
    else:
        bank(residency, 0, 0).experts[1] = 0
    with pytest.raises(RuntimeError, match="layer"):
        residency.check_integrity()
    residency.where[2][3] = 0


def test_without_contents_only_tables_are_looked_at(residency: Residency) -> None:
    residency.load(0, 0, 0)
    residency.settle(wait=True)
    bank(residency, 0, 0).matrices[0].tiles.zero_()
    residency.check_integrity(contents=False)
