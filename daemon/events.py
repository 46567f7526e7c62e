"""EventLog: the named degradations of this process, so that nothing degrades silently."""

import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """One degradation. `name` is stable and short ("weights_reencoded"), `detail` is a sentence for people."""

    name: str
    detail: str
    at: float  # seconds since the epoch


class EventLog:
    """Counts events by name and keeps the latest `capacity` of them. Any thread may use it."""

    def __init__(self, capacity: int = 200) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._recent: deque[Event] = deque(maxlen=capacity)

    def record(self, name: str, detail: str, level: int = logging.WARNING) -> None:
        """Log the event, count it and keep it."""
        logger.log(level, "%s: %s", name, detail)
        with self._lock:
            self._counts[name] += 1
            self._recent.append(Event(name, detail, time.time()))

    def counts(self) -> dict[str, int]:
        """How often each name was recorded since the start."""
        with self._lock:
            return dict(self._counts)

    def recent(self) -> tuple[Event, ...]:
        """The kept events, oldest first."""
        with self._lock:
            return tuple(self._recent)


class EventsOf(EventLog):
    """The log of all models, in which one tells its events under its name."""

    def __init__(self, log: EventLog, model: str) -> None:
        self._log, self._model = log, model

    def record(self, name: str, detail: str, level: int = logging.WARNING) -> None:
        self._log.record(name, f"{self._model}: {detail}", level)

    def counts(self) -> dict[str, int]:
        return self._log.counts()

    def recent(self) -> tuple[Event, ...]:
        return self._log.recent()
