"""HistoryKeeper: writes placement histories to their file beside the engine, so that no step waits for a disk."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .config import readable
from .events import EventLog
from .placement_history import HistoryError, PlacementHistory, load_history, remove_parts, save_history


class HistoryKeeper:
    """Of one file, which several daemons may replace: that of the last one stays. What cannot be written is an event
    and no error."""

    def __init__(self, path: Path, events: EventLog) -> None:
        self.path = path
        self._events = events
        self._changed = threading.Condition()
        self._latest: PlacementHistory | None = None  # that waits to be written
        self._given = self._done = 0
        self._stop = False
        self._fault = ""

    def load(self, fingerprint: str) -> PlacementHistory | None:
        """What was kept of the model. A file that cannot be used is put aside."""
        try:
            remove_parts(self.path)
            return self._usable(fingerprint)
        except OSError as error:
            self._events.record("placement_history_unread", f"{readable(self.path)}: {error}; it is begun anew")
            return None

    def _usable(self, fingerprint: str) -> PlacementHistory | None:
        try:
            return load_history(self.path, fingerprint)
        except HistoryError as error:
            aside = self.path.with_name(self.path.name + ".rejected")
            self.path.replace(aside)
            self._events.record("placement_history_rejected", f"{error}; now it is {readable(aside)}, and begun anew")
            return None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Meanwhile a thread writes; after it everything is written."""
        writer = threading.Thread(target=self._write_on, name="isotherm-placement")
        writer.start()
        try:
            yield
        finally:
            with self._changed:
                self._stop = True
                self._changed.notify_all()
            writer.join()

    def keep(self, history: PlacementHistory) -> int:
        """Have it written, and not those before it that were not yet. Its number, for `is_kept`. Never waits."""
        with self._changed:
            self._latest, self._given = history, self._given + 1
            self._changed.notify_all()
            return self._given

    def is_kept(self, number: int) -> bool:
        """Whether it, or a later one, is on the disk, or could not be written."""
        return self._done >= number

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._latest is not None or self._stop)
                history, number, self._latest = self._latest, self._given, None
            if history is None:
                return
            self._write(history)
            self._done = number

    def _write(self, history: PlacementHistory) -> None:
        try:
            save_history(self.path, history)
            self._fault = ""
        except OSError as error:
            if str(error) != self._fault:  # told once, not each time
                self._fault = str(error)
                self._events.record("placement_not_kept", f"{readable(self.path)}: {error}; it is tried again")
