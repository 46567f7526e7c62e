"""Mailbox: the messages of one request on their way from the engine thread to one consumer."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from .messages import Failed, Finished, FromEngine


class Mailbox:
    """The engine thread puts; one consumer gets, on the event loop that `loop` names or, with None, in a plain thread.

    What arrives while the consumer is busy is handed over together: a slow reader gets larger batches, not a longer
    queue of wake-ups. After the terminal message the mailbox is closed and yields nothing more.
    """

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.request_id = request_id
        self.opened_at = time.monotonic()
        self._loop = loop
        self._lock = threading.Condition()
        self._messages: list[FromEngine] = []
        self._closed = False
        self._waking = False  # a wake-up is due or on its way to the loop
        self._arrived = asyncio.Event()
        self._tell: Callable[[], None] = self._arrived.set

    def put(self, message: FromEngine) -> bool:
        """Add a message. True if `wake` must now bring the consumer's event loop to look; one call serves many puts.

        A message after the terminal one is a bug of the engine and raises RuntimeError.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{type(message).__name__} for {self.request_id} after its terminal message")
            self._closed = isinstance(message, Finished | Failed)
            self._messages.append(message)
            if self._loop is None:
                self._lock.notify()
                return False
            due, self._waking = not self._waking, True
            return due

    async def next_batch(self) -> list[FromEngine]:
        """All messages that have come, in order, at least one; an empty list after the terminal one."""
        while True:
            batch, over = self.take_batch()
            if batch or over:
                return batch
            self._arrived.clear()
            await self._arrived.wait()

    def wait_batch(self, timeout: float | None = None) -> list[FromEngine]:
        """As next_batch, for a plain thread. Raises TimeoutError if nothing comes within `timeout` seconds."""
        with self._lock:
            if not self._lock.wait_for(lambda: self._messages or self._closed, timeout):
                raise TimeoutError(f"no message for {self.request_id} in {timeout} s")
        return self.take_batch()[0]

    def take_batch(self) -> tuple[list[FromEngine], bool]:
        """All messages that have come, in order, perhaps none, without waiting; and whether they are the last."""
        with self._lock:
            batch, self._messages = self._messages, []
            return batch, self._closed

    def tell(self, arrived: Callable[[], None]) -> None:
        """Have `arrived` called on the event loop, instead of waking `next_batch`, each time that something has come
        since the last look; once soon in any case, for what is there already."""
        self._tell = arrived
        if self._loop is not None:
            self._loop.call_soon(self._arrive)

    async def __aiter__(self) -> AsyncIterator[FromEngine]:
        while batch := await self.next_batch():
            for message in batch:
                yield message

    def __iter__(self) -> Iterator[FromEngine]:
        while batch := self.wait_batch():
            yield from batch

    def _arrive(self) -> None:
        with self._lock:
            self._waking = False
        self._tell()


def wake(mailboxes: Iterable[Mailbox]) -> list[Mailbox]:
    """Wake the consumers of mailboxes whose `put` was True: one call per event loop, because each costs a system call
    and the interpreter lock. Returns those that nobody can read any more, because their loop is closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Mailbox]] = {}
    for mailbox in mailboxes:
        if mailbox._loop is not None:
            by_loop.setdefault(mailbox._loop, []).append(mailbox)
    unread: list[Mailbox] = []
    for loop, group in by_loop.items():
        try:
            loop.call_soon_threadsafe(_arrive_all, group)
        except RuntimeError:  # the loop is closed, and with it every reader
            unread += group
    return unread


def _arrive_all(mailboxes: list[Mailbox]) -> None:
    for mailbox in mailboxes:
        mailbox._arrive()
