"""Sinks: all that is told of requests, as the settings of a daemon ask for it."""

import threading
from pathlib import Path

from .access_log import AccessLog
from .http_metrics import HttpMetrics
from .record import Record, Sink
from .traces import Traces, send_traces


class Sinks:
    """metrics: what counts requests, to be shown with all others."""

    def __init__(self, access_log: Path | None, traces: str | None, model: str) -> None:
        """Raises OSError for a file that cannot be written, MissingPackagesError."""
        self.metrics = HttpMetrics()
        self._log = _opened(access_log)
        self._changing = threading.Lock()  # a reload comes from another thread
        self._traces: Traces | None = None if traces is None else send_traces(traces, model)

    @property
    def all(self) -> tuple[Sink, ...]:
        return (self.metrics, self._write) if self._traces is None else (self.metrics, self._write, self._traces)

    def log_to(self, access_log: Path | None) -> None:
        """Write the access log there from now on, into a file that is opened anew. Raises OSError, and goes on as
        before, for one that cannot be written."""
        new = _opened(access_log)
        with self._changing:
            old, self._log = self._log, new
        if old is not None:
            old.close()

    def _write(self, record: Record) -> None:
        with self._changing:
            if self._log is not None:
                self._log(record)

    def close(self) -> None:
        """Write and send what is left."""
        for sink in (self._log, self._traces):
            if sink is not None:
                sink.close()


def _opened(path: Path | None) -> AccessLog | None:
    return None if path is None else AccessLog(path)
