"""Memory and copies of an accelerator, whichever it is."""

import pytest
import torch
from isotherm.gpu_kernels.cuda import Cuda
from isotherm.gpu_kernels.device import Accelerator, Cost, DeviceError, DeviceMemoryError
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated
from support.fake_cuda import VRAM_BYTES, FakeTorch

KIB = 1 << 10


def accelerator(which: str) -> Accelerator:
    return Emulated(Spec(vram_bytes=VRAM_BYTES)) if which == "emulated" else Cuda(library=FakeTorch())


@pytest.fixture(params=["emulated", "cuda"])
def card(request: pytest.FixtureRequest) -> Accelerator:
    """With 64 KiB."""
    return accelerator(request.param)


def test_what_is_given_out_is_counted_until_it_is_taken_back(card: Accelerator) -> None:
    tensor = card.empty((4, KIB), torch.float32)
    assert (tensor.shape, tensor.dtype, card.used_bytes) == ((4, KIB), torch.float32, 16 * KIB)
    card.release(tensor)
    assert card.used_bytes == 0


def test_the_whole_limit_can_be_given_out_and_no_byte_more(card: Accelerator) -> None:
    card.empty((64 * KIB - 1,), torch.uint8)
    with pytest.raises(DeviceMemoryError, match=r"no room for 2 bytes more: 65,535 bytes of its limit of 64 KiB"):
        card.empty((1,), torch.int16)
    card.empty((1,), torch.int8)
    assert card.used_bytes == card.limit_bytes


def test_a_refusal_allocates_nothing(card: Accelerator) -> None:
    with pytest.raises(DeviceMemoryError, match="Place less on it, or raise its limit"):
        card.empty((65 * KIB,), torch.uint8)
    assert card.used_bytes == 0


def test_only_what_was_given_out_is_taken_back_and_once(card: Accelerator) -> None:
    other = accelerator(card.name.partition(":")[0])
    tensor = card.empty((2, 2), torch.float32)
    foreign = other.empty((2, 2), torch.float32)
    for wrong in (torch.zeros(2, 2), tensor[:1], tensor.view(4), foreign, card.pinned((2,), torch.int8)):
        with pytest.raises(ValueError, match="did not give out"):
            card.release(wrong)
    card.release(tensor)
    with pytest.raises(ValueError, match="or has it back"):
        card.release(tensor)
    assert card.used_bytes == 0


def test_the_limit_falls_to_what_is_used_and_no_further(card: Accelerator) -> None:
    card.empty((16 * KIB,), torch.uint8)
    with pytest.raises(DeviceMemoryError, match="has 16 KiB in use, so its limit cannot become 8 KiB"):
        card.set_limit(8 * KIB)
    assert card.limit_bytes == 64 * KIB
    card.set_limit(16 * KIB)
    with pytest.raises(DeviceMemoryError, match="16 KiB of its limit of 16 KiB"):
        card.empty((1,), torch.uint8)
    card.set_limit(20 * KIB)
    card.empty((4 * KIB,), torch.uint8)


def test_the_limit_does_not_rise_above_the_memory(card: Accelerator) -> None:
    with pytest.raises(DeviceMemoryError, match="has 64 KiB of memory"):
        card.set_limit(65 * KIB)


def test_copies_move_bytes_of_any_type_and_shape(card: Accelerator) -> None:
    there, here, back = (
        card.empty((2, 4), torch.float32),
        card.pinned((8,), torch.int32),
        card.pinned((32,), torch.int8),
    )
    here.copy_(torch.arange(8))
    card.copy(there, here, "to")
    card.copy(back, there, "from")
    assert back.view(torch.int32).tolist() == list(range(8))


def test_a_part_of_a_tensor_can_be_copied_to(card: Accelerator) -> None:
    bank, expert = card.empty((3, 4), torch.uint8), card.pinned((4,), torch.uint8)
    bank.zero_()
    expert.fill_(9)
    card.copy(bank[1], expert, "to")
    assert bank.tolist() == [[0] * 4, [9] * 4, [0] * 4]


def test_copies_that_do_not_fit_are_refused(card: Accelerator) -> None:
    there, here = card.empty((4, 4), torch.uint8), card.pinned((4, 4), torch.uint8)
    with pytest.raises(ValueError, match="8 bytes cannot be copied to a place of 16"):
        card.copy(there, here[:2], "to")
    with pytest.raises(ValueError, match="contiguous"):
        card.copy(there[:, :2], here[:2], "to")


@pytest.mark.parametrize("what", ["empty", "pinned", "lock", "record", "wait", "synchronise", "capture"])
def test_what_cannot_be_captured_is_refused(card: Accelerator, what: str) -> None:
    event, memory = card.record("to"), torch.zeros(1, dtype=torch.uint8)
    calls = {
        "empty": lambda: card.empty((1,), torch.uint8),
        "pinned": lambda: card.pinned((1,), torch.uint8),
        "lock": lambda: card.lock(memory),
        "record": lambda: card.record("compute"),
        "wait": lambda: card.wait("compute", event),
        "synchronise": card.synchronise,
        "capture": lambda: card.capture(lambda: None),
    }
    with pytest.raises(DeviceError, match="captures launches, and cannot"):
        card.capture(calls[what])
    card.synchronise()  # and it goes on


def test_only_copies_of_the_compute_stream_are_captured(card: Accelerator) -> None:
    there, here = card.empty((4,), torch.uint8), card.pinned((4,), torch.uint8)
    with pytest.raises(DeviceError, match="compute stream"):
        card.capture(lambda: card.copy(there, here, "to"))


def test_an_event_is_done_once_the_host_has_waited(card: Accelerator) -> None:
    card.launch(lambda: None, Cost(nbytes=1e9))
    event = card.record("compute")
    assert not event.is_done()
    card.synchronise(event)
    assert event.is_done()


def test_the_clock_goes_on_while_the_host_waits(card: Accelerator) -> None:
    start = card.now()
    card.launch(lambda: None, Cost(nbytes=1e9))
    card.synchronise()
    assert card.now() > start
