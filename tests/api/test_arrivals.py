"""Arrivals: what is gathered for one reader, in which order, and when it is told of silence and of an end."""

import asyncio
from collections.abc import Sequence

import pytest
from isotherm.api.arrivals import Arrivals
from isotherm.daemon.errors import EngineError
from isotherm.daemon.mailbox import Mailbox, wake
from isotherm.daemon.messages import Finished, FromEngine, Token, Usage

LONG = 60.0
PATIENCE_S = 20.0


def open_mailboxes(count: int) -> list[Mailbox]:
    return [Mailbox(f"r{index}", asyncio.get_running_loop()) for index in range(count)]


def put(mailbox: Mailbox, *tokens: int, ends: bool = False) -> None:
    """As the engine does it."""
    name = mailbox.request_id
    usage = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=len(tokens))
    messages: list[FromEngine] = [Token(name, token) for token in tokens]
    if ends:
        messages.append(Finished(request_id=name, reason="length", usage=usage))
    for message in messages:
        if mailbox.put(message):
            wake([mailbox])


async def told(arrivals: Arrivals) -> list[tuple[int, Sequence[int]]]:
    """The tokens of the next batches, with the index of their mailbox; -1 for an end."""
    batches = await asyncio.wait_for(arrivals.next(), PATIENCE_S)
    return [(index, [getattr(each, "token_id", -1) for each in batch]) for index, batch in batches]


def test_what_came_before_anybody_asked_and_meanwhile_is_told_together() -> None:
    async def run() -> None:
        (mailbox,) = open_mailboxes(1)
        put(mailbox, 1)
        async with Arrivals([mailbox], LONG) as arrivals:
            await asyncio.sleep(0.01)
            put(mailbox, 2, 3)
            assert await told(arrivals) == [(0, [1, 2, 3])]

    asyncio.run(run())


def test_what_comes_while_a_reader_waits_wakes_it_each_time() -> None:
    async def run() -> None:
        (mailbox,) = open_mailboxes(1)
        async with Arrivals([mailbox], LONG) as arrivals:
            for token in range(3):
                asyncio.get_running_loop().call_later(0.001, put, mailbox, token)
                assert await told(arrivals) == [(0, [token])]

    asyncio.run(run())


def test_mailboxes_are_told_apart_in_their_order() -> None:
    async def run() -> None:
        mailboxes = open_mailboxes(3)
        async with Arrivals(mailboxes, LONG) as arrivals:
            put(mailboxes[2], 5)
            put(mailboxes[0], 1, 2)
            await asyncio.sleep(0.01)
            assert await told(arrivals) == [(0, [1, 2]), (2, [5])]

    asyncio.run(run())


def test_a_mailbox_that_has_ended_does_not_keep_the_others_from_being_told() -> None:
    async def run() -> None:
        first, second = open_mailboxes(2)
        async with Arrivals([first, second], LONG) as arrivals:
            put(first, 1, ends=True)
            assert await told(arrivals) == [(0, [1, -1])]
            put(second, 2)
            assert await told(arrivals) == [(1, [2])]

    asyncio.run(run())


def test_asking_for_more_when_all_have_ended_is_an_error() -> None:
    async def run() -> None:
        mailboxes = open_mailboxes(2)
        async with Arrivals(mailboxes, LONG) as arrivals:
            for mailbox in mailboxes:
                put(mailbox, ends=True)
            await asyncio.sleep(0.01)
            assert await told(arrivals) == [(0, [-1]), (1, [-1])]
            with pytest.raises(EngineError, match="without an answer"):
                await told(arrivals)

    asyncio.run(run())


def test_silence_lasts_until_the_clock_is_restarted() -> None:
    async def run() -> list[bool]:
        async with Arrivals(open_mailboxes(1), 0.001) as arrivals:
            seen = [arrivals.silent]
            assert await told(arrivals) == []
            seen.append(arrivals.silent)
            arrivals.restart_clock()
            return [*seen, arrivals.silent]

    assert asyncio.run(run()) == [False, True, False]


def test_a_reader_that_is_silent_itself_is_told_so_though_tokens_arrive() -> None:
    async def run() -> None:
        (mailbox,) = open_mailboxes(1)
        async with Arrivals([mailbox], 0.01) as arrivals:
            await asyncio.sleep(0.05)
            put(mailbox, 1)
            assert arrivals.silent
            assert await told(arrivals) in ([], [(0, [1])])
            assert arrivals.silent

    asyncio.run(run())
