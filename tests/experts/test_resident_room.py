"""Memory of accelerators that experts give back and take again."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from isotherm.experts.errors import DeviceFullError
from isotherm.experts.pack import PackedWeights
from isotherm.experts.residency import Residency
from isotherm.experts.resident_room import ResidentRoom
from isotherm.gpu_kernels.device import DeviceError, DeviceMemoryError
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.placement.shape import CPU
from support.expert_weights import EXPERTS, SIZE, expert_weights
from support.hybrid import emulated

SLOT, TABLE, TOTAL = 3 * SIZE, 4 * EXPERTS, 1 << 20
FIXED = 1000
LAYERS = (0, 2)


@pytest.fixture
def weights() -> PackedWeights:
    return expert_weights(LAYERS)


@pytest.fixture
def accelerators() -> Iterator[tuple[Emulated, ...]]:
    """What else lies on the first takes FIXED bytes."""
    made = emulated(TOTAL, TOTAL, late=1)
    other = made[0].empty((FIXED,), torch.uint8)
    yield made
    made[0].release(other)
    assert [accelerator.used_bytes for accelerator in made] == [0, 0]


@pytest.fixture
def residency(weights: PackedWeights, accelerators: tuple[Emulated, ...]) -> Iterator[Residency]:
    """Layer 0 has experts 1, 2 and 4 on the first accelerator; layer 2 has 0 and 3 there, and 1 on the second."""
    made = Residency(weights, 3, accelerators)
    for layer, device, experts in ((0, 0, (1, 2, 4)), (2, 0, (0, 3)), (2, 1, (1,))):
        made.reserve(layer, device, len(experts))
        for expert in experts:
            made.load(layer, expert, device)
    made.settle(wait=True)
    yield made
    made.settle(wait=True)
    made.check_integrity()
    made.close()


@pytest.fixture
def room(residency: Residency, weights: PackedWeights) -> ResidentRoom:
    return ResidentRoom(residency, weights)


def lies(residency: Residency) -> list[list[int]]:
    """Experts of both layers on the first accelerator, once all have arrived."""
    residency.settle(wait=True)
    return [np.flatnonzero(residency.where[layer] == 0).tolist() for layer in LAYERS]


def fill(room: ResidentRoom) -> None:
    while room.is_growing:
        room.go_on(lambda: False)


ALL = FIXED + 5 * SLOT + 2 * TABLE


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (ALL, [[1, 2, 4], [0, 3]]),
        (ALL - 1, [[1, 2, 4], [0]]),
        (ALL - SLOT - 1, [[1, 2, 4], []]),
        (FIXED + 3 * SLOT + TABLE - 1, [[1, 2], []]),
        (FIXED + TABLE + SLOT - 1, [[], []]),
        (FIXED, [[], []]),
    ],
)
def test_what_is_beyond_the_limit_is_given_back_at_once_and_taken_again(
    limit: int, left: list[list[int]], room: ResidentRoom, residency: Residency, accelerators: tuple[Emulated, ...]
) -> None:
    room.set_limit(0, limit)
    assert accelerators[0].used_bytes <= limit == accelerators[0].limit_bytes
    fill(room)
    assert lies(residency) == left
    assert accelerators[0].used_bytes <= limit
    room.set_limit(0, TOTAL)
    fill(room)
    assert lies(residency) == [[1, 2, 4], [0, 3]]
    assert residency.where[2][1] == 1  # the other accelerator has not changed


def test_the_hottest_experts_get_the_slots_that_are_left(room: ResidentRoom, residency: Residency) -> None:
    room.heat = [np.array([9.0, 3, 1, 0, 8]), np.zeros(0), np.zeros(EXPERTS)]
    room.set_limit(0, FIXED + 2 * SLOT + TABLE)
    fill(room)
    assert lies(residency) == [[0, 4], []]


def test_it_goes_on_little_by_little(room: ResidentRoom, residency: Residency) -> None:
    room.set_limit(0, FIXED)
    room.set_limit(0, TOTAL)
    steps = 0
    while room.is_growing:
        room.go_on(lambda: True)
        steps += 1
        assert sum(map(len, lies(residency))) == steps
    assert steps == 5


def test_a_limit_below_what_cannot_be_given_back_is_refused_and_changes_nothing(
    room: ResidentRoom, residency: Residency, accelerators: tuple[Emulated, ...]
) -> None:
    with pytest.raises(DeviceFullError, match="emulated:0 needs 1000 bytes for layers and buffers"):
        room.set_limit(0, FIXED - 1)
    with pytest.raises(DeviceMemoryError, match="its limit cannot become"):
        room.set_limit(0, TOTAL + 1)
    assert accelerators[0].limit_bytes == TOTAL and not room.is_growing
    assert lies(residency) == [[1, 2, 4], [0, 3]]


def test_where_memory_has_run_out_a_part_is_given_back_each_time_until_nothing_is_left(
    room: ResidentRoom, residency: Residency, accelerators: tuple[Emulated, ...]
) -> None:
    sizes = [residency.nbytes(0)]
    while room.shed(0):
        fill(room)
        residency.settle(wait=True)
        sizes.append(residency.nbytes(0))
        assert sizes[-1] <= sizes[-2] * 3 // 4
    assert sizes[-1] == 0 and len(sizes) > 2
    assert accelerators[0].used_bytes == FIXED and accelerators[0].limit_bytes < FIXED + SLOT + TABLE
    assert residency.where[2][1] == 1


def test_it_gives_up_where_taking_memory_fails_and_can_be_told_again(
    room: ResidentRoom, residency: Residency, accelerators: tuple[Emulated, ...]
) -> None:
    room.set_limit(0, FIXED)
    room.set_limit(0, TOTAL)
    accelerators[0].faults.fail("allocation")
    with pytest.raises(DeviceError):
        room.go_on(lambda: False)
    assert not room.is_growing
    room.set_limit(0, TOTAL)
    fill(room)
    assert lies(residency) == [[1, 2, 4], [0, 3]]


def test_an_accelerator_that_was_given_up_gets_nothing(room: ResidentRoom, residency: Residency) -> None:
    room.set_limit(0, FIXED)
    residency.drop(0)
    room.forget(0)
    room.set_limit(0, TOTAL)
    assert not room.is_growing
    assert lies(residency) == [[], []]
    assert residency.where[0].tolist() == [CPU] * EXPERTS
