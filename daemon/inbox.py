"""Inbox: the door between clients and the engine thread. Any thread submits and aborts; the engine takes and delivers.

It owns the mailboxes, so it can tell which requests have not ended, and it knows the queue, so it refuses at once what
the queue cannot hold.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import InvalidStateError
from contextlib import suppress

from .errors import EngineError, InvalidRequestError
from .mailbox import Mailbox, wake
from .messages import Abort, Ask, Failed, Finished, FinishReason, FromEngine, Submit, ToEngine
from .queue_books import QueueBooks, QueueLimits


class Inbox:
    """Messages to the engine, and the mailbox of each request that has not ended."""

    def __init__(self, limits: QueueLimits) -> None:
        self._changed = threading.Condition()
        self._messages: list[ToEngine] = []
        self._mailboxes: dict[str, Mailbox] = {}
        self._asks: list[Ask] = []  # with all that have no answer yet
        self._queue = QueueBooks(limits)
        self._published = time.monotonic()
        self._refusal: str | None = None
        self._to_wake: list[Mailbox] = []  # of the engine thread alone

    def submit(self, submit: Submit, mailbox: Mailbox) -> None:
        """Accept a request; from here on it ends in exactly one terminal message in `mailbox`.

        Raises EngineError when closed, InvalidRequestError for an id in use, OverloadedError when the queue is full.
        """
        with self._changed:
            self._check(submit.tenant, len(submit.prompt))
            if submit.request_id in self._mailboxes:
                raise InvalidRequestError(f"request id {submit.request_id!r} is already in use", "request_id")
            self._mailboxes[submit.request_id] = mailbox
            self._messages.append(submit)
            self._queue.add(submit.tenant, len(submit.prompt))
            self._changed.notify()

    def limit(self, limits: QueueLimits) -> None:
        """Let so much wait from now on; what waits already stays."""
        with self._changed:
            self._queue.limits = limits

    def check_open(self, tenant: str) -> None:
        """Raise EngineError or OverloadedError if no request of his, however short, would be accepted now."""
        with self._changed:
            self._check(tenant, num_tokens=0)

    def abort(self, request_id: str, reason: FinishReason = "abort") -> None:
        """Ask the engine to forget a request. One that has ended, or never was, is no error: ends cross aborts."""
        with self._changed:
            if request_id in self._mailboxes:
                self._messages.append(Abort(request_id, reason))
                self._changed.notify()

    def ask(self, ask: Ask) -> None:
        """Hand a command over; it is answered, whatever happens. Raises EngineError when closed."""
        with self._changed:
            if self._refusal is not None:
                raise EngineError(self._refusal)
            self._messages.append(ask)
            self._asks = [other for other in self._asks if not other.answer.done()] + [ask]
            self._changed.notify()

    def close(self, reason: str) -> None:
        """Refuse new requests with EngineError(reason); what was accepted goes on. The first reason stays."""
        with self._changed:
            self._refusal = self._refusal or reason
            self._changed.notify()

    @property
    def closed(self) -> bool:
        return self._refusal is not None

    def take(self, wait: bool, timeout: float | None = None) -> list[ToEngine]:
        """All messages so far, in order. With `wait` sleeps until there is one, the inbox is closed, or `timeout`
        seconds are over."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._messages or self.closed, timeout)
            messages, self._messages = self._messages, []
            self._queue.take()
            return messages

    def publish_queue(self, queued: Mapping[str, tuple[int, int]], prefill_rate: float | None) -> None:
        """The engine's word on what it has taken and not yet run, as requests and prompt tokens of each tenant, and on
        how many tokens of prompts it computes in a second."""
        with self._changed:
            before, self._published = self._published, time.monotonic()
            self._queue.publish(queued, prefill_rate, self._published - before)

    def deliver(self, message: FromEngine) -> None:
        """Put a message into its mailbox, which a terminal one removes. Consumers on event loops wait for `flush`."""
        with self._changed:
            if isinstance(message, Finished | Failed):
                mailbox = self._mailboxes.pop(message.request_id, None)
            else:
                mailbox = self._mailboxes.get(message.request_id)
        if mailbox is not None and mailbox.put(message):
            self._to_wake.append(mailbox)

    def flush(self) -> list[str]:
        """Wake the consumers of what was delivered. Returns requests that nobody can read any more."""
        mailboxes, self._to_wake = self._to_wake, []
        return [mailbox.request_id for mailbox in wake(mailboxes)]

    def opened_at(self, request_id: str) -> float:
        """When the request was submitted, in monotonic seconds."""
        with self._changed:
            return self._mailboxes[request_id].opened_at

    def unended(self) -> list[str]:
        """Requests that the engine has taken and that have not ended."""
        with self._changed:
            untaken = {message.request_id for message in self._messages if isinstance(message, Submit)}
            return [request_id for request_id in self._mailboxes if request_id not in untaken]

    def fail_all(self, error: EngineError) -> None:
        """End every request, taken or not, with Failed(error), and every command. Only sensible once closed."""
        with self._changed:
            mailboxes, self._mailboxes = self._mailboxes, {}
            asks, self._asks = self._asks, []
            self._messages = []
        for ask in asks:
            with suppress(InvalidStateError):  # answered
                ask.answer.set_exception(error)
        wake([mailbox for request_id, mailbox in mailboxes.items() if mailbox.put(Failed(request_id, error))])

    def _check(self, tenant: str, num_tokens: int) -> None:
        if self._refusal is not None:
            raise EngineError(self._refusal)
        self._queue.check(tenant, num_tokens)
