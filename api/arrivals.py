"""Arrivals: what several mailboxes bring, for one consumer, and a clock that notices silence."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ..daemon.errors import EngineError
from ..daemon.mailbox import Mailbox
from ..daemon.messages import FromEngine


class Arrivals:
    """Gathers while entered. One task per mailbox and one timer serve the whole time: a token costs no new ones."""

    def __init__(self, mailboxes: Sequence[Mailbox], tick: float) -> None:
        self._mailboxes = mailboxes
        self._tick = tick
        self._batches: dict[int, list[FromEngine]] = {}
        self._stirred = asyncio.Event()
        self._silent = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._pumps = [asyncio.create_task(self._pump(*each)) for each in enumerate(self._mailboxes)]
        self.restart_clock()
        self._timer = self._loop.call_later(self._tick, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def next(self) -> list[tuple[int, list[FromEngine]]]:
        """Wait for news: batches with the index of their mailbox, none if the news is silence or the end of a mailbox.

        Raises EngineError if all mailboxes have ended, and what a mailbox raises.
        """
        if not self._batches:
            self._check_pumps()
        await self._stirred.wait()
        self._stirred.clear()
        batches = sorted(self._batches.items())
        self._batches.clear()
        return batches

    @property
    def silent(self) -> bool:
        """No restart of the clock for one tick."""
        return self._silent

    def restart_clock(self) -> None:
        """Something was told to the client."""
        self._silent = False
        self._last = self._loop.time()

    def _look(self) -> None:
        """Rather than moving the timer with each restart, look when it rings how much of the tick is left."""
        left = self._last + self._tick - self._loop.time()
        if left <= 0:
            self._silent = True
            self._stirred.set()
        self._timer = self._loop.call_later(left if left > 0 else self._tick, self._look)

    async def _pump(self, index: int, mailbox: Mailbox) -> None:
        try:
            while batch := await mailbox.next_batch():
                self._batches.setdefault(index, []).extend(batch)
                self._stirred.set()
        finally:
            self._stirred.set()

    def _check_pumps(self) -> None:
        for pump in self._pumps:
            if pump.done():
                pump.result()
        if all(pump.done() for pump in self._pumps):
            raise EngineError("the engine closed the request without an answer")
