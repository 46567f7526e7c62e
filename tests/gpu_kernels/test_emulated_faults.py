"""What an emulated device does wrong when it is told to, and how its user can go on."""

from collections.abc import Callable

import pytest
import torch
from isotherm.gpu_kernels.device import Cost, DeviceLostError, DeviceMemoryError
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated

SPEC = Spec(vram_bytes=1 << 16, launch_us=10.0)


def device() -> Emulated:
    return Emulated(SPEC, patience_s=3.0)


def test_a_failed_allocation_can_be_tried_again() -> None:
    card = device()
    card.faults.fail("allocation", after=1)
    card.empty((1,), torch.uint8)
    with pytest.raises(DeviceMemoryError, match="a fault"):
        card.empty((1,), torch.uint8)
    card.empty((1,), torch.uint8)
    assert card.used_bytes == 2


def test_a_fault_can_last() -> None:
    card = device()
    card.faults.fail("allocation", forever=True)
    for _ in range(3):
        with pytest.raises(DeviceMemoryError):
            card.empty((1,), torch.uint8)
    card.faults.mend()
    card.empty((1,), torch.uint8)


def test_a_failed_launch_is_seen_when_the_host_waits_for_it() -> None:
    card = device()
    done: list[int] = []
    card.faults.fail("launch", after=1)
    for number in range(3):
        card.launch(lambda number=number: done.append(number), Cost())  # type: ignore[misc]
    assert done == [0]
    with pytest.raises(DeviceLostError, match=r"emulated:0: a launch failed.*Reset it"):
        card.synchronise()


def test_what_was_done_before_a_failure_is_known() -> None:
    card = device()
    card.faults.fail("launch", after=1)
    card.launch(lambda: None, Cost())
    before = card.record("compute")
    card.launch(lambda: None, Cost())
    after = card.record("compute")
    card.synchronise(before)
    assert before.is_done()
    assert not after.is_done()
    with pytest.raises(DeviceLostError):
        card.synchronise(after)


def test_a_failed_copy_leaves_garbage() -> None:
    card = device()
    there, here = card.empty((4,), torch.uint8), card.pinned((4,), torch.uint8)
    card.faults.fail("copy")
    card.copy(there, here, "to")
    with pytest.raises(DeviceLostError, match="a copy failed"):
        card.synchronise()
    assert int(there.count_nonzero()) == 4


def test_a_replay_can_fail() -> None:
    card = device()
    replay = card.capture(lambda: card.launch(lambda: None, Cost()))
    card.faults.fail("launch")
    replay()
    with pytest.raises(DeviceLostError):
        card.synchronise()


def test_a_hanging_kernel_is_given_up_after_the_devices_patience() -> None:
    card = device()
    done: list[str] = []
    card.faults.fail("hang")
    card.launch(lambda: done.append("hanging"), Cost())
    card.launch(lambda: done.append("behind it"), Cost())
    with card.host_work(100.0):
        pass
    assert not card.record("compute").is_done()
    with pytest.raises(DeviceLostError, match="did not end within 3 s"):
        card.synchronise()
    assert card.now() == 103.0
    assert done == []


def test_other_streams_go_on_beside_a_hanging_kernel() -> None:
    card = device()
    there, here = card.empty((4,), torch.uint8), card.pinned((4,), torch.uint8)
    here.fill_(3)
    card.faults.fail("hang")
    card.launch(lambda: None, Cost())
    card.copy(there, here, "to")
    card.synchronise(card.record("to"))
    assert there.tolist() == [3] * 4
    card.wait("to", card.record("compute"))
    with pytest.raises(DeviceLostError):
        card.synchronise(card.record("to"))


def lost() -> Emulated:
    card = device()
    card.faults.fail("launch")
    card.launch(lambda: None, Cost())
    with pytest.raises(DeviceLostError):
        card.synchronise()
    return card


@pytest.mark.parametrize(
    "call",
    [
        lambda card: card.empty((1,), torch.uint8),
        lambda card: card.pinned((1,), torch.uint8),
        lambda card: card.launch(lambda: None, Cost()),
        lambda card: card.copy(torch.zeros(1), torch.zeros(1), "to"),
        lambda card: card.record("to"),
        lambda card: card.synchronise(),
        lambda card: card.capture(lambda: None),
    ],
)
def test_a_lost_device_says_so_on_each_call(call: Callable[[Emulated], object]) -> None:
    card = lost()
    with pytest.raises(DeviceLostError):
        call(card)


def test_an_event_is_not_done_on_a_lost_device() -> None:
    card = device()
    event = card.record("compute")
    card.faults.fail("launch")
    card.launch(lambda: None, Cost())
    with pytest.raises(DeviceLostError):
        card.synchronise()
    with pytest.raises(DeviceLostError):
        event.is_done()


def test_a_lost_device_gives_its_memory_back() -> None:
    card = device()
    tensor = card.empty((1,), torch.uint8)
    card.faults.fail("launch")
    card.launch(lambda: None, Cost())
    with pytest.raises(DeviceLostError):
        card.synchronise()
    card.release(tensor)
    assert card.used_bytes == 0


def test_a_reset_device_works_again_and_keeps_its_memory() -> None:
    card = device()
    tensor = card.empty((2,), torch.uint8)
    tensor.fill_(5)
    card.faults.fail("hang")
    card.launch(lambda: tensor.fill_(6), Cost())
    with pytest.raises(DeviceLostError):
        card.synchronise()
    card.reset()
    assert tensor.tolist() == [5, 5]
    start = card.now()
    card.launch(lambda: tensor.fill_(7), Cost())
    card.synchronise()
    assert tensor.tolist() == [7, 7]
    assert card.now() - start == pytest.approx(10e-6)


def test_a_dead_device_cannot_be_reset() -> None:
    card = lost()
    card.faults.dead = True
    with pytest.raises(DeviceLostError, match="does not come back"):
        card.reset()
    with pytest.raises(DeviceLostError):
        card.synchronise()
