"""Arrivals: what several mailboxes bring, for one consumer, and a clock that notices silence."""

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from ..daemon.errors import EngineError
from ..daemon.mailbox import Mailbox
from ..daemon.messages import FromEngine


class Arrivals:
    """Gathers while entered. One timer serves the whole time, and no task: a token wakes the consumer and no one else.

    The consumer may be busy while more comes; it then finds all of it at once.
    """

    def __init__(self, mailboxes: Sequence[Mailbox], tick: float) -> None:
        self._mailboxes = mailboxes
        self._tick = tick
        self._stirred: set[int] = set()  # indices of mailboxes in which something may be
        self._open = set(range(len(mailboxes)))
        self._silent = False
        self._waiter: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        for index, mailbox in enumerate(self._mailboxes):
            mailbox.tell(partial(self._stir, index))
        self.restart_clock()
        self._timer = self._loop.call_later(self._tick, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._waiter = None

    async def next(self) -> list[tuple[int, list[FromEngine]]]:
        """Wait for news: batches with the index of their mailbox, none if the news is silence.

        Raises EngineError if all mailboxes have ended.
        """
        while not self._silent:
            batches = self._take()
            if batches:
                return batches
            if not self._open:
                raise EngineError("the engine closed the request without an answer")
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._take()

    @property
    def silent(self) -> bool:
        """No restart of the clock for one tick."""
        return self._silent

    def restart_clock(self) -> None:
        """Something was told to the client."""
        self._silent = False
        self._last = self._loop.time()

    def _take(self) -> list[tuple[int, list[FromEngine]]]:
        stirred, self._stirred = self._stirred, set()
        batches = []
        for index in sorted(stirred):
            batch, over = self._mailboxes[index].take_batch()
            if over:
                self._open.discard(index)
            if batch:
                batches.append((index, batch))
        return batches

    def _look(self) -> None:
        """Rather than moving the timer with each restart, look when it rings how much of the tick is left."""
        left = self._last + self._tick - self._loop.time()
        if left <= 0:
            self._silent = True
            self._wake()
        self._timer = self._loop.call_later(left if left > 0 else self._tick, self._look)

    def _stir(self, index: int) -> None:
        self._stirred.add(index)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
