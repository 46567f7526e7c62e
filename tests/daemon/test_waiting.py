"""Turns of tenants, priorities within one, and what is true of them whatever comes."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.daemon.kv_cache import BlockTable
from isotherm.daemon.sequence import Sequence
from isotherm.daemon.waiting import LONG_ANSWER, PLACES, QUANTUM, WaitingQueue, cost_of
from support.serving import make_submit


def waits(name: str, tenant: str = "", *, prompt: int = 100, max_tokens: int = 100, priority: int = 0) -> Sequence:
    submit = make_submit(name, [1] * prompt, tenant=tenant, priority=priority, max_tokens=max_tokens)
    return Sequence(submit, BlockTable(list(submit.prompt), ""))


def queue_of(*sequences: Sequence) -> WaitingQueue:
    queue = WaitingQueue()
    for sequence in sequences:
        queue.add(sequence)
    return queue


def order(queue: WaitingQueue) -> list[str]:
    return [queue.take().request_id for _ in range(len(queue))]


def test_a_lone_tenant_is_served_in_the_order_of_arrival() -> None:
    sizes = (5000, 1, 20_000, 3)
    assert order(queue_of(*(waits(str(n), prompt=size) for n, size in enumerate(sizes)))) == ["0", "1", "2", "3"]


def test_tenants_take_turns_however_many_requests_one_has() -> None:
    big = QUANTUM - 100
    flood = [waits(f"flood {n}", "flood", prompt=big) for n in range(4)]
    queue = queue_of(*flood, waits("guest 0", "guest", prompt=big), waits("guest 1", "guest", prompt=big))
    assert order(queue) == ["flood 0", "guest 0", "flood 1", "guest 1", "flood 2", "flood 3"]


def test_small_requests_get_as_much_work_done_as_large_ones() -> None:
    large = [waits(f"large {n}", "large", prompt=QUANTUM - 100) for n in range(5)]
    small = [waits(f"small {n}", "small", prompt=QUANTUM // 4 - 100) for n in range(20)]
    first = order(queue_of(*large, *small))[:10]
    assert Counter(name.split()[0] for name in first) == {"large": 2, "small": 8}


def test_an_answer_counts_up_to_what_most_are_at_most() -> None:
    assert cost_of(waits("a", prompt=7, max_tokens=5).submit) == 12
    assert cost_of(waits("a", prompt=7, max_tokens=100_000).submit) == 7 + LONG_ANSWER


def test_who_comes_back_has_saved_nothing() -> None:
    queue = queue_of(waits("a 0", "a"))
    queue.take()
    for n in range(10):
        queue.add(waits(f"b {n}", "b", prompt=QUANTUM - 100))
    for n in range(1, 11):
        queue.add(waits(f"a {n}", "a", prompt=QUANTUM - 100))
    assert order(queue)[:6] == ["b 0", "a 1", "b 1", "a 2", "b 2", "a 3"]


def test_credit_for_a_request_that_was_given_up_is_not_spent_on_others() -> None:
    huge = waits("huge", "a", prompt=50 * QUANTUM)
    queue = queue_of(huge, waits("b 0", "b", prompt=60 * QUANTUM))
    assert queue.first() is huge
    queue.remove(huge)
    for n in range(10):
        queue.add(waits(f"a {n}", "a", prompt=QUANTUM - 100))
        queue.add(waits(f"c {n}", "c", prompt=QUANTUM - 100))
    first = [queue.take().request_id for _ in range(6)]
    assert Counter(name.split()[0] for name in first) == {"a": 3, "c": 3}


def test_a_lower_priority_is_sooner_within_its_tenant_only() -> None:
    queue = queue_of(
        waits("plain", "a", prompt=QUANTUM - 100),
        waits("other", "b", prompt=QUANTUM - 100),
        waits("urgent", "a", prompt=QUANTUM - 100, priority=-3),
        waits("patient", "b", prompt=QUANTUM - 100, priority=-5),
    )
    assert order(queue) == ["urgent", "patient", "plain", "other"]


def test_a_step_of_priority_passes_so_many_and_no_more() -> None:
    queue = queue_of(waits("patient", priority=2), *(waits(str(n)) for n in range(100)))
    assert order(queue).index("patient") == 2 * PLACES - 1


def test_a_preempted_request_comes_before_all() -> None:
    queue = queue_of(waits("first", "a"), waits("second", "b", priority=-9))
    preempted = queue.take()
    queue.put_back(preempted)
    queue.add(waits("third", "c", priority=-9))
    assert queue.first() is preempted
    assert queue.take() is preempted
    assert len(queue) == 2


def test_a_preempted_request_is_not_charged_again() -> None:
    queue = queue_of(*(waits(f"{tenant} {n}", tenant, prompt=QUANTUM - 100) for n in range(3) for tenant in "ab"))
    first = queue.take()
    for _ in range(5):
        queue.put_back(first)
        queue.take()
    assert order(queue) == ["b 0", "a 1", "b 1", "a 2", "b 2"]


def test_what_does_not_wait_cannot_leave() -> None:
    with pytest.raises(IndexError):
        WaitingQueue().take()
    with pytest.raises(ValueError):
        WaitingQueue().remove(waits("a"))


TENANTS = ("a", "b", "c")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(TENANTS), st.integers(1, 3 * QUANTUM), st.integers(-3, 3)),
        st.tuples(st.just("take")),
        st.tuples(st.just("put back")),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("look")),
    ),
    max_size=60,
)


class Played:
    """A queue after operations. `taken`: what left it, with what waited before it did."""

    def __init__(self, operations: list[tuple[object, ...]]) -> None:
        self.queue = WaitingQueue()
        self.waiting: list[Sequence] = []
        self.taken: list[tuple[Sequence, list[Sequence]]] = []
        self._out: list[Sequence] = []
        self._number = 0
        for operation, *args in operations:
            getattr(self, f"_{str(operation).replace(' ', '_')}")(*args)
            assert sorted(each.request_id for each in self.queue) == sorted(each.request_id for each in self.waiting)
            assert len(self.queue) == len(self.waiting)
            assert (self.queue.first() is None) == (not self.waiting)

    def _add(self, tenant: str, prompt: int, priority: int) -> None:
        sequence = waits(str(self._number), tenant, prompt=prompt, max_tokens=1, priority=priority)
        self._number += 1
        self.queue.add(sequence)
        self.waiting.append(sequence)

    def _take(self) -> None:
        if not self.waiting:
            return
        first = self.queue.first()
        sequence = self.queue.take()
        assert sequence is first
        self.taken.append((sequence, list(self.waiting)))
        self.waiting.remove(sequence)
        self._out.append(sequence)

    def _put_back(self) -> None:
        if self._out:
            sequence = self._out.pop()
            self.queue.put_back(sequence)
            self.waiting.append(sequence)

    def _remove(self, number: int) -> None:
        if self.waiting:
            self.queue.remove(self.waiting.pop(number % len(self.waiting)))

    def _look(self) -> None:
        self.queue.first()

    def drain(self) -> None:
        while self.waiting:
            self._take()


@settings(max_examples=200)
@given(operations=OPERATIONS)
def test_everything_that_waits_leaves_once_and_the_order_is_the_same_each_time(operations) -> None:
    first, second = Played(operations), Played(operations)
    first.drain()
    second.drain()
    assert [each.request_id for each, _ in first.taken] == [each.request_id for each, _ in second.taken]
    assert len(first.queue) == 0


@settings(max_examples=200)
@given(operations=OPERATIONS)
def test_looking_changes_nothing(operations) -> None:
    watched = Played([each for operation in operations for each in (operation, ("look",))])
    plain = Played([operation for operation in operations if operation[0] != "look"])
    watched.drain()
    plain.drain()
    assert [each.request_id for each, _ in watched.taken] == [each.request_id for each, _ in plain.taken]


@settings(max_examples=200)
@given(operations=OPERATIONS)
def test_of_one_tenant_and_priority_the_older_goes_first(operations) -> None:
    played = Played([each for each in operations if each[0] != "put back"])
    played.drain()
    for sequence, waiting in played.taken:
        peers = [
            each
            for each in waiting
            if (each.submit.tenant, each.submit.priority) == (sequence.submit.tenant, sequence.submit.priority)
        ]
        assert sequence.request_id == min((each.request_id for each in peers), key=int)


@settings(max_examples=100)
@given(
    sizes=st.fixed_dictionaries(
        {name: st.lists(st.integers(1, 3 * QUANTUM), min_size=30, max_size=30) for name in "ab"}
    ),
    window=st.tuples(st.integers(0, 25), st.integers(1, 30)),
)
def test_while_two_wait_their_shares_differ_by_no_more_than_a_turn_and_two_requests(sizes, window) -> None:
    """The known bound of deficit round robin, in any window of time."""
    queue = queue_of(*(waits(f"{n}", name, prompt=size) for name in "ab" for n, size in enumerate(sizes[name])))
    work = Counter[str]()
    for turn in range(sum(window)):
        submit = queue.take().submit
        if turn >= window[0]:
            work[submit.tenant] += cost_of(submit)
        if {each.submit.tenant for each in queue} != {"a", "b"}:
            break
    largest = max(map(max, sizes.values())) + 100
    assert abs(work["a"] - work["b"]) <= QUANTUM + 2 * largest


@settings(max_examples=100)
@given(
    priority=st.integers(-3, 3),
    rivals=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3)), min_size=1, max_size=4),
)
def test_nobody_starves_however_many_urgent_ones_follow(priority: int, rivals: list[tuple[str, int]]) -> None:
    """More arrive than are admitted, for ever."""
    queue = queue_of(waits("patient", "a", priority=priority))
    passed = 0
    for turn in range(1000):
        for n, (tenant, urgency) in enumerate(rivals):
            queue.add(waits(f"{turn}.{n}", tenant, priority=urgency))
        taken = queue.take()
        if taken.request_id == "patient":
            break
        passed += taken.submit.tenant == "a"
    assert taken.request_id == "patient"
    assert passed <= PLACES * (priority + 3)
