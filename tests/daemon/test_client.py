"""Mailbox, inbox and client without an engine: batching, wake-ups, the door's refusals."""

import asyncio
import threading

import pytest
from isotherm.daemon.client import EngineClient
from isotherm.daemon.errors import ContextLengthError, EngineError, InvalidRequestError, OverloadedError
from isotherm.daemon.inbox import Inbox
from isotherm.daemon.mailbox import Mailbox, wake
from isotherm.daemon.messages import Abort, Failed, Finished, Submit, Token, Usage
from isotherm.daemon.queue_books import QueueLimits
from isotherm.daemon.request import SamplingParams
from isotherm.daemon.status import EngineStats


def submit(request_id: str = "a", prompt: tuple[int, ...] = (1, 2, 3), **sampling) -> Submit:
    return Submit(request_id=request_id, prompt=prompt, sampling=SamplingParams(**sampling), eos_token_ids=frozenset())


def finished(request_id: str = "a") -> Finished:
    usage = Usage(prompt_tokens=3, cached_tokens=0, completion_tokens=1)
    return Finished(request_id=request_id, reason="length", usage=usage)


def make_inbox(max_queued: int = 4, max_queued_tokens: int = 100) -> Inbox:
    return Inbox(QueueLimits(max_queued=max_queued, max_queued_tokens=max_queued_tokens))


def test_a_queue_that_is_made_smaller_keeps_what_waits_and_takes_no_more() -> None:
    inbox = make_inbox(max_queued=4)
    for name in "abc":
        inbox.submit(submit(name), Mailbox(name))
    inbox.limit(QueueLimits(max_queued=2, max_queued_tokens=100))
    with pytest.raises(OverloadedError):
        inbox.submit(submit("d"), Mailbox("d"))
    assert len(inbox.take(wait=False)) == 3


def make_client(inbox: Inbox) -> EngineClient:
    return EngineClient(inbox, vocab_size=10, max_context=16, stats=EngineStats)


class CountingLoop:
    """Stands for an event loop of which only the wake-ups matter."""

    def __init__(self) -> None:
        self.calls: list = []

    def call_soon_threadsafe(self, callback, *args) -> None:
        self.calls.append((callback, args))

    def run(self) -> None:
        for callback, args in self.calls:
            callback(*args)


def test_an_async_consumer_gets_everything_that_came_in_one_batch():
    async def run() -> list:
        mailbox = Mailbox("a", asyncio.get_running_loop())
        for token in range(3):
            mailbox.put(Token("a", token))
        return await mailbox.next_batch()

    assert [message.token_id for message in asyncio.run(run())] == [0, 1, 2]


def test_a_wake_up_is_due_once_until_the_loop_has_run_it():
    loop = CountingLoop()
    mailbox = Mailbox("a", loop)
    assert [mailbox.put(Token("a", token)) for token in range(3)] == [True, False, False]
    wake([mailbox])
    assert mailbox.put(Token("a", 3)) is False
    loop.run()
    assert mailbox.put(Token("a", 4)) is True


def test_one_call_wakes_all_consumers_of_a_loop():
    loops = [CountingLoop(), CountingLoop()]
    assert wake([Mailbox(str(i), loops[i % 2]) for i in range(6)]) == []
    assert [len(loop.calls) for loop in loops] == [1, 1]


def test_an_async_consumer_sleeps_until_another_thread_puts():
    async def run() -> list:
        mailbox = Mailbox("a", asyncio.get_running_loop())
        reader = asyncio.create_task(mailbox.next_batch())
        await asyncio.sleep(0)  # the reader waits now
        await asyncio.to_thread(lambda: mailbox.put(Token("a", 7)) and wake([mailbox]))
        return await reader

    assert asyncio.run(run()) == [Token("a", 7)]


def test_async_iteration_ends_after_the_terminal_message():
    async def run() -> list:
        mailbox = Mailbox("a", asyncio.get_running_loop())
        mailbox.put(Token("a", 1))
        mailbox.put(finished())
        seen = [message async for message in mailbox]
        return [*seen, *await mailbox.next_batch()]

    assert asyncio.run(run()) == [Token("a", 1), finished()]


def test_a_cancelled_read_loses_nothing():
    async def run() -> list:
        mailbox = Mailbox("a", asyncio.get_running_loop())
        reader = asyncio.create_task(mailbox.next_batch())
        await asyncio.sleep(0)
        mailbox.put(Token("a", 1))
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        return await mailbox.next_batch()

    assert asyncio.run(run()) == [Token("a", 1)]


def test_a_plain_thread_iterates_to_the_end():
    mailbox = Mailbox("a")
    writer = threading.Thread(target=lambda: [mailbox.put(m) for m in (Token("a", 1), Token("a", 2), finished())])
    writer.start()
    assert list(mailbox) == [Token("a", 1), Token("a", 2), finished()]
    writer.join()
    assert mailbox.wait_batch() == []


def test_a_blocking_read_can_time_out():
    with pytest.raises(TimeoutError, match="no message for a"):
        Mailbox("a").wait_batch(timeout=0)


def test_a_message_after_the_terminal_one_is_a_bug():
    mailbox = Mailbox("a")
    mailbox.put(finished())
    with pytest.raises(RuntimeError, match="after its terminal message"):
        mailbox.put(Token("a", 1))


def test_a_closed_loop_is_reported_and_not_raised():
    async def run() -> Mailbox:
        return Mailbox("a", asyncio.get_running_loop())

    mailbox = asyncio.run(run())
    assert wake([mailbox]) == [mailbox]


def test_messages_leave_the_inbox_in_order():
    inbox = make_inbox()
    first = submit()
    inbox.submit(first, Mailbox("a"))
    inbox.abort("a")
    assert inbox.take(wait=False) == [first, Abort("a")]
    assert inbox.take(wait=False) == []


def test_an_abort_of_an_unknown_request_is_dropped():
    inbox = make_inbox()
    inbox.abort("nobody")
    assert inbox.take(wait=False) == []


def test_a_full_queue_refuses_at_the_door():
    inbox = make_inbox(max_queued=2)
    inbox.submit(submit("a"), Mailbox("a"))
    inbox.submit(submit("b"), Mailbox("b"))
    with pytest.raises(OverloadedError, match="2 requests with 6 prompt tokens") as caught:
        inbox.submit(submit("c"), Mailbox("c"))
    assert caught.value.retry_after == 1.0


def test_what_the_engine_has_taken_counts_until_it_says_otherwise():
    inbox = make_inbox(max_queued=1)
    inbox.submit(submit("a"), Mailbox("a"))
    inbox.take(wait=False)
    with pytest.raises(OverloadedError):
        inbox.check_open("")
    inbox.publish_queue({}, None)
    inbox.check_open("")


def test_the_token_limit_refuses_but_never_a_lone_request():
    inbox = make_inbox(max_queued_tokens=4)
    inbox.submit(submit("a", tuple(range(9))), Mailbox("a"))
    with pytest.raises(OverloadedError):
        inbox.submit(submit("b", (1,)), Mailbox("b"))


def test_retry_after_is_the_time_to_compute_what_waits():
    inbox = make_inbox(max_queued=1)
    inbox.publish_queue({"": (1, 500)}, 100.0)
    with pytest.raises(OverloadedError) as caught:
        inbox.check_open("")
    assert caught.value.retry_after == 5.0


def test_an_id_in_use_is_refused_and_free_again_after_the_end():
    inbox = make_inbox()
    inbox.submit(submit("a"), Mailbox("a"))
    with pytest.raises(InvalidRequestError, match="'a' is already in use"):
        inbox.submit(submit("a"), Mailbox("a"))
    inbox.deliver(finished("a"))
    inbox.submit(submit("a"), Mailbox("a"))


def test_a_closed_inbox_names_the_first_reason():
    inbox = make_inbox()
    inbox.close("the GPU fell off")
    inbox.close("shutting down")
    with pytest.raises(EngineError, match="the GPU fell off"):
        inbox.submit(submit(), Mailbox("a"))


def test_closing_wakes_a_waiting_engine():
    inbox = make_inbox()
    taken: list = []
    engine = threading.Thread(target=lambda: taken.append(inbox.take(wait=True)))
    engine.start()
    inbox.close("over")
    engine.join(20)
    assert taken == [[]]


def test_fail_all_ends_every_request_once():
    inbox = make_inbox()
    boxes = [Mailbox(name) for name in "ab"]
    for box in boxes:
        inbox.submit(submit(box.request_id), box)
    error = EngineError("over")
    inbox.fail_all(error)
    inbox.fail_all(error)
    assert [list(box) for box in boxes] == [[Failed("a", error)], [Failed("b", error)]]


def test_unended_requests_are_those_that_were_taken():
    inbox = make_inbox()
    inbox.submit(submit("a"), Mailbox("a"))
    inbox.take(wait=False)
    inbox.submit(submit("b"), Mailbox("b"))
    assert inbox.unended() == ["a"]


def test_a_message_for_an_ended_request_is_dropped():
    inbox = make_inbox()
    inbox.deliver(Token("gone", 1))
    assert inbox.flush() == []


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (submit(prompt=()), InvalidRequestError, "prompt is empty"),
        (submit(prompt=(1,) * 16), ContextLengthError, "has 16 tokens.*at most 16; shorten it to 15"),
        (submit(prompt=(1, 10)), InvalidRequestError, "ids run from 0 to 9"),
        (submit(prompt=(1, -1)), InvalidRequestError, "ids run from 0 to 9"),
        (submit(logit_bias=((10, 1.0),)), InvalidRequestError, "token 10 the bias 1.0"),
        (submit(logit_bias=((1, float("nan")),)), InvalidRequestError, "bias nan"),
        (submit(stop_token_ids=frozenset({10})), InvalidRequestError, "stop_token_ids.*0 to 9"),
        (submit(stop_token_ids=frozenset({2**64})), InvalidRequestError, "stop_token_ids.*0 to 9"),
        (submit(stop_token_ids=frozenset(range(10)), min_tokens=1), InvalidRequestError, "leaves no token to choose"),
    ],
)
def test_a_bad_request_is_refused_before_it_is_queued(bad, error, text):
    inbox = make_inbox()
    with pytest.raises(error, match=text):
        make_client(inbox).submit(bad)
    assert inbox.take(wait=False) == []


def test_submit_on_a_loop_gives_a_mailbox_of_that_loop():
    inbox = make_inbox()

    async def run() -> list:
        mailbox = make_client(inbox).submit(submit())
        reader = asyncio.create_task(mailbox.next_batch())
        await asyncio.sleep(0)
        await asyncio.to_thread(lambda: (inbox.deliver(finished()), inbox.flush()))
        return await reader

    assert asyncio.run(run()) == [finished()]


def test_submit_in_a_plain_thread_gives_a_blocking_mailbox():
    inbox = make_inbox()
    mailbox = make_client(inbox).submit(submit())
    inbox.deliver(finished())
    assert list(mailbox) == [finished()]
