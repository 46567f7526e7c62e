"""Late execution: all that an event promises, in an order that is allowed, and garbage for who forgets to wait."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.gpu_kernels.device import Accelerator, Cost, StreamName
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.gpu_kernels.order import STREAMS, Late, Mark

SEEDS = range(20)


@dataclass(frozen=True)
class Step:
    """An addition to a stream of an order, a mark of it, or a wait of the stream or the host for the mark that lies
    `back` marks back."""

    what: str
    order: int
    stream: StreamName
    back: int


PROGRAMS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["add", "add", "mark", "wait", "finish"]),
        st.integers(0, 1),
        st.sampled_from(STREAMS),
        st.integers(0, 3),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(PROGRAMS, st.integers(0, 1000))
def test_what_comes_before_is_done_before(program: list[Step], seed: int) -> None:
    orders = [Late(Random(seed + number)) for number in range(2)]
    done: list[int] = []
    before: dict[tuple[int, StreamName], set[int]] = {(n, name): set() for n in range(2) for name in STREAMS}
    marks: list[tuple[Mark, set[int]]] = []  # and what is done by then
    ahead: dict[int, set[int]] = {}  # of each addition, what must be done before it
    for number, step in enumerate(program):
        order, lane = orders[step.order], before[step.order, step.stream]
        if step.what == "add":
            order.add(step.stream, lambda number=number: done.append(number))  # type: ignore[misc]
            ahead[number] = set(lane)
            lane.add(number)
        elif step.what == "mark":
            marks.append((order.mark(step.stream), set(lane)))
        elif step.back < len(marks):
            mark, promised = marks[-1 - step.back]
            if step.what == "wait":
                order.wait(step.stream, mark)
                lane |= promised
            else:
                mark.order.finish(mark)
                assert promised <= set(done)
    assert len(done) == len(set(done))
    for place, number in enumerate(done):
        assert ahead[number] <= set(done[:place])


def test_nothing_is_done_before_the_host_waits() -> None:
    done: list[int] = []
    order = Late(Random(0))
    order.add("compute", lambda: done.append(1))
    mark = order.mark("compute")
    assert done == []
    order.finish(mark)
    assert done == [1]


def test_what_one_device_waits_for_is_done_by_the_other() -> None:
    done: list[int] = []
    first, second = Late(Random(0)), Late(Random(1))
    first.add("from", lambda: done.append(1))
    second.wait("to", first.mark("from"))
    second.add("to", lambda: done.append(2))
    first.wait("compute", second.mark("to"))
    first.add("compute", lambda: done.append(3))
    first.finish(first.mark("compute"))
    assert done == [1, 2, 3]


def test_what_is_forgotten_is_never_done() -> None:
    done: list[int] = []
    order = Late(Random(0))
    order.add("to", lambda: done.append(1))
    mark = order.mark("to")
    order.forget()
    order.finish(mark)
    order.add("to", lambda: done.append(2))
    order.finish(order.mark("to"))
    assert done == [2]


def doubled(card: Accelerator, careless: str) -> list[int]:
    """Send a number, double it there and fetch it, twice over, through the same memory; leave one wait out."""
    there, here, back = card.empty((4,), torch.int32), card.pinned((4,), torch.int32), card.pinned((4,), torch.int32)
    results = []

    def wait(name: str, stream: StreamName, other: StreamName) -> None:
        if name != careless:
            card.wait(stream, card.record(other))

    for number in (3, 5):
        here.fill_(number)
        wait("memory is free", "to", "from")
        card.copy(there, here, "to")
        wait("sent", "compute", "to")
        card.launch(lambda: there.mul_(2), Cost())
        wait("computed", "from", "compute")
        card.copy(back, there, "from")
        event = card.record("from")
        if careless != "host":
            card.synchronise(event)
        results.append(int(back[0]))
    card.synchronise()
    return results


def test_a_careful_host_gets_the_same_in_any_order() -> None:
    assert all(doubled(Emulated(late=Random(seed)), "") == [6, 10] for seed in SEEDS)
    assert doubled(Emulated(), "") == [6, 10]


@pytest.mark.parametrize("careless", ["sent", "computed", "host"])
def test_who_forgets_to_wait_gets_garbage(careless: str) -> None:
    assert doubled(Emulated(), careless) == [6, 10]  # as it happens
    assert any(doubled(Emulated(late=Random(seed)), careless) != [6, 10] for seed in SEEDS)


def test_memory_that_is_overwritten_too_soon_is_noticed() -> None:
    def overwritten(card: Accelerator) -> int:
        there, out = card.empty((4,), torch.int32), card.empty((4,), torch.int32)
        here, back = card.pinned((4,), torch.int32), card.pinned((4,), torch.int32)
        there.fill_(1)
        card.launch(lambda: out.copy_(there), Cost())
        here.fill_(2)
        card.copy(there, here, "to")  # while the launch may still read
        card.copy(back, out, "compute")
        card.synchronise(card.record("compute"))
        return int(back[0])

    assert overwritten(Emulated()) == 1
    assert {overwritten(Emulated(late=Random(seed))) for seed in SEEDS} == {1, 2}


def test_new_memory_holds_garbage() -> None:
    assert int(Emulated(late=Random(0)).empty((8,), torch.uint8).count_nonzero()) == 8


def test_an_event_that_is_done_has_its_work_done() -> None:
    card = Emulated(late=Random(0))
    done: list[int] = []
    card.launch(lambda: done.append(1), Cost())
    event = card.record("compute")
    with card.host_work(1.0):
        pass
    assert done == []
    assert event.is_done()
    assert done == [1]


def test_an_error_of_the_work_is_raised_where_the_host_waits() -> None:
    card = Emulated(late=Random(0))
    wrong: Callable[[], object] = lambda: torch.zeros(2) + torch.zeros(3)  # noqa: E731
    card.launch(wrong, Cost())
    with pytest.raises(RuntimeError, match="size of tensor"):
        card.synchronise()
