"""TraceKeeper: keeps the routing of live traffic across restarts, in one file for each model."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..placement.files import lock_of, locked
from ..placement.trace import RoutingTrace, TraceError, appended
from ..placement.trace_file import load_trace, merge_into
from .config import readable
from .events import EventLog
from .machine import lower_priority
from .routing_recorder import RoutingRecorder

HALF_LIFE = 1_000_000  # tokens of a phase after which older ones count half
EVERY_S = 60.0


class TraceKeeper:
    """Adds what a recorder took to the file: at most each `every_s` seconds, and at the end. Several daemons may add to
    one file. A file that cannot be written or used is an event and no error."""

    def __init__(
        self,
        recorder: RoutingRecorder,
        path: Path,
        events: EventLog,
        *,
        half_life: float = HALF_LIFE,
        every_s: float = EVERY_S,
    ) -> None:
        self.path = path
        self._recorder, self._events = recorder, events
        self._half_life, self._every_s = half_life, every_s
        self._unsaved: RoutingTrace | None = None  # what could not be written
        self._stop = threading.Event()
        self._fault = ""

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Meanwhile a thread of low priority saves; after it everything is saved."""
        saver = threading.Thread(target=self._save_now_and_then, name="isotherm-routing")
        saver.start()
        try:
            yield
        finally:
            self._stop.set()
            self._recorder.news.set()
            saver.join()
            self.save()

    def _save_now_and_then(self) -> None:
        lower_priority()
        while not self._stop.is_set():
            self._recorder.news.wait()  # an idle daemon wakes for nothing
            self._stop.wait(self._every_s)
            self.save()

    def save(self) -> None:
        """Add what is new to the file."""
        trace = self._recorder.take()
        if self._unsaved is not None:
            trace = appended(self._unsaved, trace)
        self._unsaved = None
        if trace.empty:
            return
        try:
            self._merge(trace)
            self._fault = ""
        except (OSError, TraceError) as error:
            self._unsaved = trace
            if str(error) != self._fault:  # told once, not every minute
                self._fault = str(error)
                self._events.record("routing_not_kept", f"{readable(self.path)}: {error}; it is tried again")

    def _merge(self, trace: RoutingTrace) -> None:
        try:
            merge_into(self.path, trace, self._half_life)
        except TraceError:
            self._put_aside()
            merge_into(self.path, trace, self._half_life)

    def _put_aside(self) -> None:
        """Make room where the file is none that could be added to; another daemon may just have done the same."""
        with locked(lock_of(self.path)):
            try:
                load_trace(self.path, self._recorder.fingerprint)
            except TraceError as error:
                aside = self.path.with_name(self.path.name + ".rejected")
                self.path.replace(aside)
                detail = f"{error}; now it is {readable(aside)}, and routing is recorded from the beginning"
                self._events.record("routing_trace_rejected", detail)
