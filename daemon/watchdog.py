"""Watchdog: a thread that tells the service manager that the daemon is well, as long as it is."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from .notify import Notifier

logger = logging.getLogger(__name__)

Watch = Callable[[float], str | None]


class Watchdog:
    """Feeds the manager's watchdog twice in each of its periods, while none of the watches has a fault.

    watches: each says what is wrong at a time in monotonic seconds, None for nothing. text: the status of the daemon,
    in words. period_s: the manager's, see `watchdog_s`.
    """

    def __init__(self, notifier: Notifier, watches: Sequence[Watch], text: Callable[[], str], period_s: float) -> None:
        self._notifier = notifier
        self._watches = watches
        self._text = text
        self._pause = period_s / 2
        self._fault: str | None = None
        self._ended = False

    def start(self) -> None:
        """Begin to feed."""
        threading.Thread(target=self._run, name="isotherm-watchdog", daemon=True).start()

    def end(self) -> None:
        """Feed no more. A signal handler may call it."""
        self._ended = True

    def _run(self) -> None:
        while not self._ended:
            self.look(time.monotonic())
            time.sleep(self._pause)

    def look(self, now: float) -> None:
        """Feed, or say once why not."""
        fault = next((fault for watch in self._watches if (fault := watch(now)) is not None), None)
        if fault is None:
            self._notifier.watchdog(self._text())
        elif self._fault is None:
            logger.error("the watchdog is not fed: %s", fault)
            self._notifier.status(f"not well: {fault}")
        self._fault = fault
