"""PackCache: a model's packed weights, taken from the store of an earlier start or packed and written there later."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from ..cpu_kernels.seating import Seating
from ..experts.pack import PackedWeights, pack
from ..experts.progress import Progress
from ..experts.store import PackedStore, StoreBusyError, StoreError
from .config import readable
from .events import EventLog
from .machine import lower_priority

logger = logging.getLogger(__name__)

State = Literal[
    "empty", "read", "to write", "writing", "written", "written by another process", "not written", "stopped"
]


class PackCache:
    """Not thread-safe, but for `status`. A store that cannot be read or written is an event and no error."""

    def __init__(self, store: PackedStore, events: EventLog) -> None:
        self._store, self._events = store, events
        self._weights: PackedWeights | None = None  # while they are to be written
        self._state: State = "empty"
        self._done = self._total = 0
        self._stop = threading.Event()

    def load_or_pack(self, threads: int | Seating, progress: Progress | None = None) -> PackedWeights:
        """The weights of the store; where there is none that can be used, those of the checkpoint."""
        weights = self._load(threads, progress)
        if weights is not None:
            self._state = "read"
            return weights
        self._weights = pack(self._store.model, threads, progress)
        self._state, self._total = "to write", self._weights.nbytes
        return self._weights

    def write(self, threads: int | Seating = 1, progress: Progress | None = None) -> None:
        """Write the weights, unless the store had them. `progress` may raise to stop; then no file is left."""
        weights, self._weights = self._weights, None
        if weights is None:
            return
        self._state = "writing"
        try:
            self._store.save(weights, threads, progress)
            self._state = "written"
        except StoreBusyError:
            self._state = "written by another process"
            logger.info("%s: another process is writing it", self._store.path)
        except (StoreError, OSError) as error:
            detail = f"{self._store.path}: {error}; a later start packs the weights again"
            self._events.record("packed_store_not_written", detail)
        finally:
            if self._state == "writing":
                self._state = "not written"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Meanwhile the weights are written by a thread of low priority, as far as it gets."""
        writer = threading.Thread(target=self._write_slowly, name="isotherm-store")
        if self._weights is not None:
            writer.start()
        try:
            yield
        finally:
            self._stop.set()
            if writer.ident is not None:
                writer.join()

    def stop_writing(self) -> None:
        """Leave it at what is written by now; a later start packs the weights again."""
        self._stop.set()

    def status(self) -> dict[str, Any]:
        """state: "not written" comes with an event that says why; bytes are those written so far, and all."""
        path = readable(self._store.path)
        return {"state": self._state, "path": path, "done_bytes": self._done, "total_bytes": self._total}

    def _load(self, threads: int | Seating, progress: Progress | None) -> PackedWeights | None:
        try:
            return self._store.load(threads, progress)
        except FileNotFoundError:  # the first start
            return None
        except (StoreError, OSError) as error:
            detail = f"{self._store.path}: {error}; the weights are packed again"
            self._events.record("packed_store_rejected", detail)
            return None

    def _write_slowly(self) -> None:
        lower_priority()
        started = time.monotonic()

        def report(stage: str, done: int, total: int) -> None:
            self._done, self._total = done, total
            if self._stop.is_set():
                raise _Stopped

        try:
            self.write(progress=report)
        except _Stopped:
            self._state = "stopped"
            logger.info("the packed weights are not kept: stopped at %d of %d MiB", self._done >> 20, self._total >> 20)
        if self._state == "written":
            logger.info("the packed weights are kept in %s, %.1f s", self._store.path, time.monotonic() - started)


class _Stopped(Exception):
    """The daemon ends before all is written."""
