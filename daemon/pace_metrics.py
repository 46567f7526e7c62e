"""What /metrics tells of speed where there are no accelerators: measured and, by a plan, foretold tokens a second."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..placement.plan import Plan
from .status import EngineStats


class PaceMetrics(Collector):
    """stats: asked for each time. plan: None if none is served."""

    def __init__(self, stats: Callable[[], EngineStats], plan: Plan | None) -> None:
        self._stats, self._plan = stats, plan

    def collect(self) -> Iterator[Metric]:
        if self._plan is not None:
            predicted = GaugeMetricFamily(
                "isotherm_predicted_tokens_per_second", "What the plan foretold, for its traffic", labels=("phase",)
            )
            predicted.add_metric(("decode",), self._plan.predicted_decode_tok_s.value)
            predicted.add_metric(("prefill",), self._plan.predicted_prefill_tok_s.value)
            yield predicted
        measured = GaugeMetricFamily(
            "isotherm_measured_tokens_per_second", "Of recent steps of one phase", labels=("phase",)
        )
        stats = self._stats()
        for phase, rate in (("decode", stats.decode_rate), ("prefill", stats.prefill_rate)):
            if rate is not None:
                measured.add_metric((phase,), rate)
        yield measured
