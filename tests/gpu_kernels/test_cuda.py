"""What Cuda asks of torch, with a torch whose cards are played."""

from collections.abc import Callable

import pytest
import torch
from isotherm.gpu_kernels import cuda
from isotherm.gpu_kernels.cuda import Cuda
from isotherm.gpu_kernels.device import Cost, DeviceError, DeviceLostError, DeviceMemoryError
from support.fake_cuda import VRAM_BYTES, AcceleratorError, FakeTorch

COMPUTE, TO, FROM = range(3)  # of the fake's streams


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    played = FakeTorch()
    monkeypatch.setattr(cuda, "time", played.clock)
    return played


@pytest.fixture
def card(fake: FakeTorch) -> Cuda:
    return Cuda(library=fake, patience_s=3.0)


def test_the_budget_is_what_is_free_at_first(fake: FakeTorch) -> None:
    fake.free = 1000
    assert Cuda(library=fake).limit_bytes == 1000
    assert Cuda(library=fake, limit_bytes=500).limit_bytes == 500


def test_a_card_that_torch_does_not_see_is_an_error() -> None:
    with pytest.raises(DeviceError, match="no cuda:1: torch sees 1 cards"):
        Cuda(1, library=FakeTorch())
    with pytest.raises(DeviceError, match="torch sees no cards"):
        Cuda(library=FakeTorch(cards=0))


def test_copies_go_to_their_stream_and_the_host_goes_on(fake: FakeTorch, card: Cuda) -> None:
    there, here = card.empty((4,), torch.float32), card.pinned((16,), torch.uint8)
    here.fill_(7)
    card.copy(there, here, "to")
    card.copy(here, there, "from")
    card.copy(there, here, "compute")
    assert fake.copies == [(fake.streams[TO], True), (fake.streams[FROM], True), (fake.streams[COMPUTE], True)]
    assert there.view(torch.uint8).tolist() == [7] * 16


def test_kernels_are_launched_on_the_compute_stream(fake: FakeTorch, card: Cuda) -> None:
    seen = []
    card.launch(lambda: seen.append(fake.current), Cost())
    assert seen == [fake.streams[COMPUTE]]
    assert fake.current is None


def test_a_stream_is_told_what_to_wait_for(fake: FakeTorch, card: Cuda) -> None:
    event = card.record("to")
    card.wait("compute", event)
    assert fake.streams[COMPUTE].waits_for == [event.raw]
    assert event.raw.stream is fake.streams[TO]


def test_copies_to_new_memory_come_after_what_may_still_use_it(fake: FakeTorch, card: Cuda) -> None:
    card.empty((4,), torch.uint8)
    for stream in (TO, FROM):
        assert [event.stream for event in fake.streams[stream].waits_for] == [fake.streams[COMPUTE]]


def test_memory_is_kept_for_all_streams_when_it_is_released(fake: FakeTorch, card: Cuda) -> None:
    card.release(card.empty((4,), torch.uint8))
    assert fake.kept_for == fake.streams


def test_a_lower_limit_gives_back_what_torch_keeps(fake: FakeTorch, card: Cuda) -> None:
    card.set_limit(1000)
    assert fake.emptied == 1
    card.set_limit(2000)
    assert fake.emptied == 1


def test_torch_without_memory_is_no_lost_card(fake: FakeTorch, card: Cuda) -> None:
    fake.free = 10
    with pytest.raises(DeviceMemoryError, match=r"cuda:0 is out of memory.*10 bytes are free"):
        card.empty((11,), torch.uint8)
    assert card.used_bytes == 0
    card.empty((10,), torch.uint8)


def test_a_kernel_without_memory_is_no_lost_card(fake: FakeTorch, card: Cuda) -> None:
    with pytest.raises(DeviceMemoryError):
        card.launch(lambda: fake.empty((VRAM_BYTES + 1,), torch.uint8, "cuda:0"), Cost())
    card.synchronise()


def test_a_driver_without_memory_for_a_graph_is_no_lost_card(fake: FakeTorch, card: Cuda) -> None:
    def full() -> None:
        if fake.capturing:
            raise AcceleratorError("CUDA error: out of memory\nmore words")

    with pytest.raises(DeviceMemoryError):
        card.capture(lambda: card.launch(full, Cost()))
    card.synchronise()


@pytest.mark.parametrize(
    "error",
    [
        AcceleratorError("an illegal memory access\nmore words"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
    ],
)
def test_an_error_of_the_card_is_a_lost_card(fake: FakeTorch, card: Cuda, error: Exception) -> None:
    fake.error = error
    with pytest.raises(DeviceLostError) as caught:
        card.launch(fake.fail, Cost())
    assert str(error).splitlines()[0] in str(caught.value)
    assert "more words" not in str(caught.value)
    fake.error = None
    with pytest.raises(DeviceLostError):
        card.synchronise()


def test_an_error_of_the_program_is_itself(card: Cuda) -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        card.launch(lambda: torch.zeros(2) + torch.zeros(3), Cost())
    card.synchronise()


def test_what_hangs_is_given_up_after_the_cards_patience(fake: FakeTorch, card: Cuda) -> None:
    fake.streams[TO].hangs = True
    card.synchronise(card.record("compute"))
    start = fake.clock.now
    with pytest.raises(DeviceLostError, match="did not end within 3 s"):
        card.synchronise(card.record("to"))
    assert 3.0 < fake.clock.now - start < 3.1


def test_a_card_that_only_took_long_can_be_used_again(fake: FakeTorch, card: Cuda) -> None:
    fake.streams[COMPUTE].hangs = True
    with pytest.raises(DeviceLostError):
        card.synchronise()
    with pytest.raises(DeviceLostError):
        card.reset()
    fake.streams[COMPUTE].hangs = False
    card.reset()
    card.synchronise()


def test_a_card_that_failed_stays_lost(fake: FakeTorch, card: Cuda) -> None:
    fake.error = AcceleratorError("sticky")
    with pytest.raises(DeviceLostError):
        card.synchronise()
    with pytest.raises(DeviceLostError):
        card.reset()
    with pytest.raises(DeviceLostError):
        card.empty((1,), torch.uint8)


def test_a_lost_card_takes_memory_back(fake: FakeTorch, card: Cuda) -> None:
    tensor = card.empty((4,), torch.uint8)
    fake.error = AcceleratorError("sticky")
    with pytest.raises(DeviceLostError):
        card.synchronise()
    card.release(tensor)
    assert card.used_bytes == 0


def test_a_graph_is_warmed_up_recorded_and_replayed(fake: FakeTorch, card: Cuda) -> None:
    streams = []
    replay: Callable[[], object] = card.capture(lambda: card.launch(lambda: streams.append(fake.current), Cost()))
    assert streams == [fake.streams[COMPUTE]] * 2
    (graph,) = fake.graphs
    assert graph.stream is fake.streams[COMPUTE]
    replay()
    replay()
    assert graph.replays == 2
    assert len(streams) == 2


def test_what_is_captured_is_done_once_and_again_by_each_replay(fake: FakeTorch, card: Cuda) -> None:
    there = card.empty((2,), torch.int64)
    there.zero_()
    one = torch.ones(2, dtype=torch.int64)
    replay = card.capture(lambda: card.launch(lambda: torch.add(there, one, out=there), Cost()))
    assert there.tolist() == [1, 1]
    replay()
    assert there.tolist() == [2, 2]


def test_events_tell_the_time_between_them(fake: FakeTorch, card: Cuda) -> None:
    first = card.record("compute")
    fake.clock.sleep(0.5)
    second = card.record("compute")
    with pytest.raises(DeviceError, match="not yet come"):
        second.since(first)
    card.synchronise()
    card.synchronise(first)
    card.synchronise(second)
    assert second.since(first) == pytest.approx(0.5)


def test_host_memory_is_locked_and_unlocked(fake: FakeTorch, card: Cuda) -> None:
    memory = torch.zeros(100, dtype=torch.uint8)
    assert card.lock(memory)
    assert fake.locked == [memory.data_ptr()]
    card.unlock(memory)
    assert fake.locked == []


@pytest.mark.parametrize(
    "refusals, granted", [({9: 801}, True), ({9: 1, 1: 1}, False), ({9: 712}, True)], ids=["retry", "never", "before"]
)
def test_a_driver_may_refuse_to_lock(refusals: dict[int, int], granted: bool, fake: FakeTorch, card: Cuda) -> None:
    fake.refusals = refusals
    assert card.lock(torch.zeros(100, dtype=torch.uint8)) == granted


def test_memory_is_unlocked_by_the_card_that_it_was_locked_for_first(fake: FakeTorch, card: Cuda) -> None:
    memory, other = torch.zeros(100, dtype=torch.uint8), Cuda(library=fake)
    assert card.lock(memory)
    fake.refusals = {9: 712}
    assert other.lock(memory)
    other.unlock(memory)
    assert fake.locked == [memory.data_ptr()]
    card.unlock(memory)
    assert fake.locked == []
