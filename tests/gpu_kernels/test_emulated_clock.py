"""The emulated device's model of time."""

import pytest
import torch
from isotherm.gpu_kernels.clock import Clock
from isotherm.gpu_kernels.device import Accelerator, Cost, DeviceError
from isotherm.gpu_kernels.device_spec import Spec
from isotherm.gpu_kernels.emulated import Emulated

# A byte takes a nanosecond to read, two to send and four to fetch.
SPEC = Spec(
    vram_bytes=1 << 20,
    read_gb_s=1.0,
    tflops={"other": 1.0, "Q8_0": 2.0},
    launch_us=5.0,
    hop_us=10.0,
    to_gb_s=0.5,
    from_gb_s=0.25,
)
US = 1e-6
KERNEL = Cost(nbytes=100_000)  # 100 us and a launch


def nothing() -> None:
    pass


def device(clock: Clock | None = None) -> Accelerator:
    return Emulated(SPEC, clock=clock)


def waited_us(accelerator: Accelerator) -> float:
    accelerator.synchronise()
    return accelerator.now() / US


def buffers(accelerator: Accelerator, count: int = 50_000) -> tuple[torch.Tensor, torch.Tensor]:
    """On the device, and pinned."""
    return accelerator.empty((count,), torch.uint8), accelerator.pinned((count,), torch.uint8)


@pytest.mark.parametrize(
    ("cost", "us"),
    [
        (Cost(), 5),
        (Cost(nbytes=100_000), 105),
        (Cost(flops=3e8), 305),
        (Cost(flops=3e8, kind="Q8_0"), 155),
        (Cost(flops=3e8, kind="Q4_0"), 305),
        (Cost(nbytes=400_000, flops=3e8), 405),
        (Cost(nbytes=100_000, kernels=3), 115),
    ],
)
def test_a_kernel_takes_its_launches_and_its_memory_or_its_arithmetic(cost: Cost, us: float) -> None:
    card = device()
    card.launch(nothing, cost)
    assert waited_us(card) == pytest.approx(us)


def test_copies_take_the_rate_of_their_direction() -> None:
    card = device()
    there, here = buffers(card)
    card.copy(there, here, "to")
    assert waited_us(card) == pytest.approx(10 + 100)
    card.copy(here, there, "from")
    assert waited_us(card) == pytest.approx(110 + 10 + 200)
    card.copy(there[:1000], there[1000:2000], "compute")
    assert waited_us(card) == pytest.approx(320 + 5 + 2)


def test_copies_one_behind_the_other_share_a_hop() -> None:
    card = device()
    there, here = buffers(card)
    for _ in range(3):
        card.copy(there, here, "to")
    assert waited_us(card) == pytest.approx(10 + 300)
    card.copy(there, here, "to")
    assert waited_us(card) == pytest.approx(310 + 110)


def test_host_and_streams_work_at_the_same_time() -> None:
    card = device()
    there, here = buffers(card)
    card.launch(nothing, KERNEL)
    card.copy(there, here, "to")
    with card.host_work(90 * US):
        pass
    assert waited_us(card) == pytest.approx(110)


def test_a_stream_waits_for_an_event_of_another() -> None:
    card = device()
    there, here = buffers(card)
    card.copy(there, here, "to")
    card.wait("compute", card.record("to"))
    card.launch(nothing, KERNEL)
    assert waited_us(card) == pytest.approx(110 + 105)


def test_an_event_says_nothing_of_what_comes_later() -> None:
    card = device()
    card.launch(nothing, KERNEL)
    event = card.record("compute")
    card.launch(nothing, KERNEL)
    assert not event.is_done()
    card.synchronise(event)
    assert event.is_done()
    assert card.now() / US == pytest.approx(105)
    assert not card.record("compute").is_done()


def test_work_does_not_begin_before_the_host_has_queued_it() -> None:
    card = device()
    with card.host_work(50 * US):
        pass
    card.launch(nothing, KERNEL)
    assert waited_us(card) == pytest.approx(155)


def test_events_tell_the_time_between_them() -> None:
    card = device()
    before = card.record("compute")
    card.launch(nothing, KERNEL)
    after = card.record("compute")
    with pytest.raises(DeviceError, match="not yet come"):
        after.since(before)
    card.synchronise()
    assert after.since(before) / US == pytest.approx(105)


def test_a_replay_costs_one_launch() -> None:
    card = device()
    seen: list[int] = []

    def work() -> None:
        for number in range(4):
            card.launch(lambda number=number: seen.append(number), Cost(nbytes=10_000))  # type: ignore[misc]

    replay = card.capture(work)
    assert waited_us(card) == pytest.approx(60)
    replay()
    assert waited_us(card) == pytest.approx(60 + 45)
    assert seen == [0, 1, 2, 3] * 2


def test_a_replay_does_not_run_the_hosts_part_again() -> None:
    card = device()
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        card.launch(nothing, KERNEL)

    replay = card.capture(work)
    replay()
    assert len(calls) == 1


def test_only_pinned_copies_of_the_compute_stream_are_captured() -> None:
    card = device()
    there, here = buffers(card)
    with pytest.raises(DeviceError, match="compute stream"):
        card.capture(lambda: card.copy(there, here, "to"))
    with pytest.raises(DeviceError, match="pinned"):
        card.capture(lambda: card.copy(there, torch.zeros_like(here), "compute"))
    replay = card.capture(lambda: card.copy(there, here, "compute"))
    here.fill_(7)
    replay()
    assert int(there.sum()) == 7 * len(there)
    assert waited_us(card) == pytest.approx(110 + 5 + 110)


def test_the_host_is_not_free_during_a_copy_of_unpinned_memory() -> None:
    card = device()
    there, _ = buffers(card)
    card.copy(there, torch.zeros(50_000, dtype=torch.uint8), "to")
    assert card.now() / US == pytest.approx(110)


def test_pinned_memory_is_that_of_all_devices_of_a_host() -> None:
    clock = Clock()
    there, _ = buffers(device(clock))
    card = device(clock)
    mine = card.empty((50_000,), torch.uint8)
    rows = card.pinned((4, 50_000), torch.uint8).numpy()
    for row in rows:  # as another library sees it
        card.copy(mine, torch.from_numpy(row), "to")
    assert clock.now == 0
    card.copy(there, mine, "to")  # of another device: no pinned memory of this one's host
    assert clock.now > 0


def test_devices_that_share_a_clock_have_one_host() -> None:
    clock = Clock()
    first, second = device(clock), device(clock)
    first.launch(nothing, KERNEL)
    second.wait("compute", first.record("compute"))
    second.launch(nothing, KERNEL)
    assert waited_us(second) == pytest.approx(210)
    assert first.now() == second.now()
