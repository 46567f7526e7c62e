"""HttpMetrics: requests by route and status, and the tokens of each key's name."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .record import Record

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 960, 3840)
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})  # clients can send any word as method


class HttpMetrics(Collector):
    """A sink of records, and a collector of what it counted."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "isotherm_http_requests",
            "Answered requests; status 0 is none at all",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "isotherm_http_request_duration_seconds",
            "From head to end of a request",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._gone = Counter("isotherm_http_clients_gone", "Requests whose client left first", registry=self._registry)
        self._tokens = Counter(
            "isotherm_key_tokens", "Tokens by the name of the key", ("key", "kind"), registry=self._registry
        )

    def __call__(self, record: Record) -> None:
        route, method = record.route or "none", record.method if record.method in _METHODS else "other"
        self._requests.labels(method, route, str(record.status)).inc()
        self._seconds.labels(route).observe(record.duration_s)
        if record.outcome == "gone":
            self._gone.inc()
        if record.usage is not None and record.key_name:
            self._tokens.labels(record.key_name, "prompt").inc(record.usage.prompt_tokens)
            self._tokens.labels(record.key_name, "cached").inc(record.usage.cached_tokens)
            self._tokens.labels(record.key_name, "generation").inc(record.usage.completion_tokens)

    def collect(self) -> Iterator[Metric]:
        yield from self._registry.collect()
