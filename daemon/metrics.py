"""Metrics: what the engine did, in Prometheus' text format. One registry per object; all names start with isotherm_."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .events import EventLog
from .messages import Usage
from .metrics_alias import Alias
from .status import EngineStats

# fmt: off
_FIRST_TOKEN_S = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_GAP_S = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_S = (.001, .0025, .005, .01, .02, .03, .05, .075, .1, .15, .2, .3, .5, .75, 1, 2.5, 5, 10, 30, 60)
# fmt: on


class Metrics:
    """Histograms and token counters are fed as things happen; the rest is read from `stats` and `events` when asked."""

    def __init__(self, stats: Callable[[], EngineStats], events: EventLog) -> None:
        self._registry = CollectorRegistry()
        self._aliases = CollectorRegistry()
        self._registry.register(_Snapshot(stats, events))
        self.first_token = self._histogram("time_to_first_token_seconds", "From arrival to first token", _FIRST_TOKEN_S)
        self.token_gap = self._histogram("inter_token_latency_seconds", "Between tokens of a request", _GAP_S)
        self.token_time = self._histogram(
            "time_per_output_token_seconds", "Mean gap between the tokens of a request", _GAP_S
        )
        self.queue_time = self._histogram("request_queue_time_seconds", "From arrival to first step", _REQUEST_S)
        self.request_time = self._histogram("e2e_request_latency_seconds", "From arrival to the end", _REQUEST_S)
        self.step_time = self._histogram("step_duration_seconds", "One step of the model, sampling included", _STEP_S)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Of these, tokens found in the prefix cache")
        self._generated_tokens = self._counter("generation_tokens", "Generated tokens of ended requests")
        self._finished = self._counter("request_finished", "Ended requests by reason", ("reason",))

    def add(self, collector: Collector) -> None:
        """Render what else is known."""
        self._registry.register(collector)

    def count_ended(self, reason: str, usage: Usage | None) -> None:
        """Count a request that has ended; `usage` None if it never came into the queue."""
        self._finished.labels(reason).inc()
        if usage is not None:
            self._prompt_tokens.inc(usage.prompt_tokens)
            self._cached_tokens.inc(usage.cached_tokens)
            self._generated_tokens.inc(usage.completion_tokens)

    def add_alias(self, model: str) -> None:
        """Tell what is in the alias set by those names too."""
        self._aliases.register(Alias(self._registry, model))

    def families(self) -> Iterator[Metric]:
        """All that is told, other names included."""
        yield from self._registry.collect()
        yield from self._aliases.collect()

    def render(self) -> bytes:
        """The exposition text, version 0.0.4."""
        return generate_latest(self._registry) + generate_latest(self._aliases)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"isotherm_{name}", text, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"isotherm_{name}", text, labels, registry=self._registry)


class RequestTimer:
    """Observes the latencies of one request, each exactly once. Times are monotonic seconds."""

    def __init__(self, metrics: Metrics, arrived: float) -> None:
        self._metrics = metrics
        self._arrived = arrived
        self._scheduled = False
        self._first_token: float | None = None
        self._last_token = arrived
        self._gaps = 0

    def scheduled(self, now: float) -> None:
        """A step works on the request; only the first one ends its time in the queue."""
        if not self._scheduled:
            self._scheduled = True
            self._metrics.queue_time.observe(now - self._arrived)

    def token(self, now: float) -> None:
        """A token was generated."""
        if self._first_token is None:
            self._first_token = now
            self._metrics.first_token.observe(now - self._arrived)
        else:
            self._gaps += 1
            self._metrics.token_gap.observe(now - self._last_token)
        self._last_token = now

    def ended(self, reason: str, usage: Usage | None, now: float) -> None:
        """The request has ended; `reason` is a finish reason or "error"."""
        self._metrics.request_time.observe(now - self._arrived)
        if self._first_token is not None and self._gaps:
            self._metrics.token_time.observe((self._last_token - self._first_token) / self._gaps)
        self._metrics.count_ended(reason, usage)


class _Snapshot(Collector):
    """Gauges and counters that others already keep."""

    def __init__(self, stats: Callable[[], EngineStats], events: EventLog) -> None:
        self._stats = stats
        self._events = events

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("requests_running", "Requests in the running set", stats.running),
            ("requests_waiting", "Requests that wait", stats.waiting),
            ("waiting_tokens", "Tokens to compute for requests that wait", stats.waiting_tokens),
            ("kv_cache_usage_ratio", "Share of KV blocks held by running requests", stats.kv_usage),
            ("step_age_seconds", "How long the step under way has run, 0 when idle", stats.step_age()),
            ("ready", "1 if the engine takes requests", float(stats.state == "ready")),
        ):
            yield GaugeMetricFamily(f"isotherm_{name}", text, value)
        for name, text, value in (
            ("steps", "Steps of the model", stats.steps),
            ("failed_steps", "Steps that failed", stats.failed_steps),
            (
                "prefill_tokens",
                "Tokens of prompts that were computed, once more after preemption",
                stats.prefill_tokens,
            ),
            ("decode_tokens", "Tokens of streams that were computed", stats.decode_tokens),
            ("preemptions", "Requests that gave their blocks back", stats.preemptions),
            ("prefix_cache_queries", "Tokens looked up in the prefix cache", stats.prefix_queried_tokens),
            ("prefix_cache_hits", "Tokens found in the prefix cache", stats.prefix_hit_tokens),
            ("audit_failures", "Failed integrity audits", stats.audit_failures),
        ):
            yield CounterMetricFamily(f"isotherm_{name}", text, value)
        for which, text in enumerate(("Requests that have not run yet, by key", "Their prompt tokens, by key")):
            queued = GaugeMetricFamily(f"isotherm_queued_{('requests', 'tokens')[which]}", text, labels=("key",))
            for tenant, counts in sorted(stats.queued.items()):
                queued.add_metric((tenant,), counts[which])
            yield queued
        yield events_family(self._events)


def events_family(events: EventLog) -> Metric:
    """How often each event was recorded."""
    family = CounterMetricFamily("isotherm_fallback_events", "Degradations by name", labels=("name",))
    for name, count in sorted(events.counts().items()):
        family.add_metric((name,), count)
    return family
