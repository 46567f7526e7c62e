"""Sinks: all that is told of requests, as the settings of a daemon ask for it."""

from pathlib import Path

from .access_log import AccessLog
from .http_metrics import HttpMetrics
from .record import Sink
from .traces import Traces, send_traces


class Sinks:
    """metrics: what counts requests, to be shown with all others."""

    def __init__(self, access_log: Path | None, traces: str | None, model: str) -> None:
        """Raises OSError for a file that cannot be written, MissingPackagesError."""
        self.metrics = HttpMetrics()
        self._log = None if access_log is None else AccessLog(access_log)
        self._traces: Traces | None = None if traces is None else send_traces(traces, model)

    @property
    def all(self) -> tuple[Sink, ...]:
        others = (self._log, self._traces)
        return (self.metrics, *(sink for sink in others if sink is not None))

    def close(self) -> None:
        """Write and send what is left."""
        for sink in (self._log, self._traces):
            if sink is not None:
                sink.close()
