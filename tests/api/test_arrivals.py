"""Arrivals, with mailboxes that do what the engine's never should."""

import asyncio
from collections.abc import Sequence

import pytest
from isotherm.api.arrivals import Arrivals
from isotherm.daemon.errors import EngineError
from isotherm.daemon.messages import FromEngine, Token

TOKEN = Token("r", 1)


class ListMailbox:
    """Hands out one batch after the other, and raises those that are errors."""

    def __init__(self, *batches: Sequence[FromEngine] | Exception) -> None:
        self.batches = list(batches)

    async def next_batch(self) -> list[FromEngine]:
        await asyncio.sleep(0)
        batch = self.batches.pop(0) if self.batches else []
        if isinstance(batch, Exception):
            raise batch
        return list(batch)


class EmptyMailbox:
    async def next_batch(self) -> list[FromEngine]:
        await asyncio.Event().wait()
        raise AssertionError


async def read_all(*mailboxes: object) -> list[tuple[int, int]]:
    seen = []
    async with Arrivals(mailboxes, 60.0) as arrivals:
        while True:
            seen += [(index, len(batch)) for index, batch in await arrivals.next()]
            if sum(count for _, count in seen) == 4:
                return seen


def test_batches_of_one_mailbox_are_merged_for_a_slow_reader() -> None:
    async def run() -> list[tuple[int, int]]:
        async with Arrivals([ListMailbox([TOKEN], [TOKEN, TOKEN])], 60.0) as arrivals:
            for _ in range(10):
                await asyncio.sleep(0)
            return [(index, len(batch)) for index, batch in await arrivals.next()]

    assert asyncio.run(run()) == [(0, 3)]


def test_mailboxes_are_told_apart() -> None:
    seen = asyncio.run(read_all(ListMailbox([TOKEN]), ListMailbox([TOKEN, TOKEN], [TOKEN])))
    assert [sum(count for index, count in seen if index == which) for which in (0, 1)] == [1, 3]


def test_the_end_of_all_mailboxes_is_an_error() -> None:
    with pytest.raises(EngineError, match="without an answer"):
        asyncio.run(read_all(ListMailbox([TOKEN]), ListMailbox()))


def test_the_error_of_one_mailbox_is_not_lost_while_others_wait() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(read_all(EmptyMailbox(), ListMailbox([TOKEN], ZeroDivisionError())))


def test_silence_lasts_until_the_clock_is_restarted() -> None:
    async def run() -> list[bool]:
        async with Arrivals([EmptyMailbox()], 0.001) as arrivals:
            seen = [arrivals.silent]
            assert await arrivals.next() == []
            seen.append(arrivals.silent)
            arrivals.restart_clock()
            return [*seen, arrivals.silent]

    assert asyncio.run(run()) == [False, True, False]
