"""FleetMetrics: what /metrics shows of all models together."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from ..events import EventLog
from ..metrics import Metrics, events_family
from .fleet import Fleet
from .host import Hosted

_EVENTS = "isotherm_fallback_events"  # of all models together


class FleetMetrics:
    """Where one model is known, its metrics are told as they are; those of several have its id as the label `model`.
    What an unloaded model has counted is told no more: its counters begin anew.

    others: what is not of a model.
    """

    def __init__(self, fleet: Fleet[Hosted[Any]], events: EventLog, others: Sequence[Collector]) -> None:
        self._fleet, self._events = fleet, events
        self._others = CollectorRegistry()
        for collector in (_Restarts(fleet), *others):
            self._others.register(collector)
        self._several = len(fleet.names) > 1

    def render(self) -> bytes:
        """The exposition text, version 0.0.4."""
        engines = {name: hosted.assembly.engine.metrics for name, hosted in self._fleet.loaded()}
        if engines and not self._several:
            (metrics,) = engines.values()
            return metrics.render() + generate_latest(self._others)
        registry = CollectorRegistry()
        registry.register(_Merged(engines, self._events, self._fleet.show() if self._several else []))
        return generate_latest(registry) + generate_latest(self._others)


class _Restarts(Collector):
    """Of all engines together, those of unloaded models included."""

    def __init__(self, fleet: Fleet[Hosted[Any]]) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        count = sum(member["restarts"] for member in self._fleet.show())
        yield CounterMetricFamily("isotherm_engine_restarts", "Engines that hung or failed and were restarted", count)


class _Merged(Collector):
    """The families of several engines, each once."""

    def __init__(self, engines: Mapping[str, Metrics], events: EventLog, members: list[dict[str, Any]]) -> None:
        self._engines, self._events, self._members = engines, events, members

    def collect(self) -> Iterator[Metric]:
        merged: dict[str, Metric] = {}
        for model, metrics in self._engines.items():
            for family in metrics.families():
                if family.name == _EVENTS:
                    continue
                into = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    labels = {**sample.labels, "model": model}
                    into.samples.append(Sample(sample.name, labels, sample.value, sample.timestamp, sample.exemplar))
        yield from merged.values()
        yield events_family(self._events)
        if self._members:
            yield from self._of_members()

    def _of_members(self) -> Iterator[Metric]:
        loaded = GaugeMetricFamily("isotherm_model_loaded", "1 if the model takes requests now", labels=("model",))
        waiting = GaugeMetricFamily(
            "isotherm_model_waiting_requests", "Requests that wait for the model to be loaded", labels=("model",)
        )
        loads = CounterMetricFamily("isotherm_model_loads", "How often the model was loaded", labels=("model",))
        for member in self._members:
            loaded.add_metric((member["id"],), float(member["state"] == "ready"))
            waiting.add_metric((member["id"],), member["waiting"])
            loads.add_metric((member["id"],), member["loads"])
        yield from (loaded, waiting, loads)
