"""Who may wait, and when to come back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isotherm.daemon.errors import OverloadedError
from isotherm.daemon.queue_books import QueueBooks, QueueLimits


def books(max_queued: int = 10, max_queued_tokens: int = 1000) -> QueueBooks:
    return QueueBooks(QueueLimits(max_queued=max_queued, max_queued_tokens=max_queued_tokens))


def fill(queue: QueueBooks, tenant: str, tokens: int = 1, limit: int = 1000) -> int:
    """How many requests a tenant brings in."""
    for number in range(limit):
        try:
            queue.check(tenant, tokens)
        except OverloadedError:
            return number
        queue.add(tenant, tokens)
    return limit


def test_one_without_a_name_may_fill_the_queue() -> None:
    assert fill(books(), "") == 10


def test_a_named_tenant_leaves_room_for_others() -> None:
    queue = books()
    assert fill(queue, "a") == 8
    assert fill(queue, "b", limit=1) == 1


def test_tokens_are_shared_too() -> None:
    queue = books(max_queued=1000)
    assert fill(queue, "a", tokens=100) == 8
    assert fill(queue, "b", tokens=100, limit=1) == 1


def test_the_refusal_says_whether_the_queue_or_a_share_is_full() -> None:
    queue = books()
    fill(queue, "a")
    with pytest.raises(OverloadedError, match="your share of the queue is full: 8 requests of this key with 8 prompt"):
        queue.check("a", 1)
    fill(queue, "")
    with pytest.raises(OverloadedError, match="the queue is full: 10 requests with 10 prompt"):
        queue.check("b", 1)


@settings(max_examples=200)
@given(
    limits=st.tuples(st.integers(1, 30), st.integers(1, 300)),
    arrivals=st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(1, 100)), max_size=60),
)
def test_the_bounds_hold_whoever_comes(limits: tuple[int, int], arrivals: list[tuple[str, int]]) -> None:
    """[53]"""
    queue = books(*limits)
    waiting: list[int] = []
    for tenant, tokens in arrivals:
        try:
            queue.check(tenant, tokens)
        except OverloadedError as error:
            assert 1 <= error.retry_after <= 600
            continue
        queue.add(tenant, tokens)
        waiting.append(tokens)
        assert len(waiting) <= limits[0]
        assert len(waiting) == 1 or sum(waiting) <= limits[1]


@settings(max_examples=100)
@given(floods=st.lists(st.sampled_from("abc"), max_size=100), max_queued=st.integers(15, 60))
def test_one_who_has_nothing_waiting_gets_in_however_others_flood(floods: list[str], max_queued: int) -> None:
    queue = books(max_queued)
    for tenant in floods:
        fill(queue, tenant, limit=1)
    queue.check("guest", 1)


def test_what_started_waits_no_more() -> None:
    queue = books(max_queued=2)
    fill(queue, "")
    queue.take()
    queue.publish({"": (1, 1)}, None, 1.0)
    assert fill(queue, "") == 1


def test_come_back_when_the_prompts_that_wait_are_computed() -> None:
    queue = books(max_queued=1)
    queue.publish({"": (1, 500)}, 100.0, 1.0)
    with pytest.raises(OverloadedError) as caught:
        queue.check("", 1)
    assert caught.value.retry_after == 5.0


def test_come_back_when_those_that_wait_have_started_where_that_takes_longer() -> None:
    queue = books(max_queued=8)
    queue.publish({"": (10, 10)}, 100.0, 1.0)
    queue.publish({"": (8, 8)}, 100.0, 4.0)
    with pytest.raises(OverloadedError) as caught:
        queue.check("", 1)
    assert caught.value.retry_after == pytest.approx(16.0)


def test_an_idle_time_is_no_measure_of_how_fast_requests_start() -> None:
    queue = books(max_queued=2)
    queue.publish({}, None, 1000.0)
    queue.publish({"": (2, 2)}, None, 1000.0)
    with pytest.raises(OverloadedError) as caught:
        queue.check("", 1)
    assert caught.value.retry_after == 1.0


def test_of_a_share_only_its_own_requests_are_waited_for() -> None:
    queue = books()
    queue.publish({"a": (8, 80), "b": (1, 900)}, 10.0, 1.0)
    with pytest.raises(OverloadedError, match="your share") as caught:
        queue.check("a", 1)
    assert caught.value.retry_after == 8.0
