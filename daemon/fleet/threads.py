"""Threads in which a fleet's slow work is done: they do not hold up the end of the process."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

R = TypeVar("R")


class Threads:
    """A thread for each piece of work, of which there are few."""

    def __init__(self) -> None:
        self._running: set[threading.Thread] = set()

    async def run(self, work: Callable[[], R]) -> R:
        """What the work gives, or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def body() -> None:
            with suppress(RuntimeError):  # the loop has ended
                try:
                    loop.call_soon_threadsafe(_settle, future, future.set_result, work())
                except Exception as error:
                    loop.call_soon_threadsafe(_settle, future, future.set_exception, error)

        thread = threading.Thread(target=body, name="isotherm-models", daemon=True)
        self._running.add(thread)
        thread.start()
        try:
            return await future
        finally:
            self._running = {each for each in self._running if each.is_alive()}

    def join(self, patience_s: float) -> None:
        """Wait for what is under way, but for no longer than this."""
        end = time.monotonic() + patience_s
        for thread in self._running:
            thread.join(max(0.0, end - time.monotonic()))


def _settle(future: asyncio.Future[R], settle: Callable[[Any], None], result: Any) -> None:
    if not future.done():
        settle(result)
