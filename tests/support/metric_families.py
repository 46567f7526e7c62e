"""All that a daemon can tell at /metrics."""

from types import SimpleNamespace

from isotherm.api.http_metrics import HttpMetrics
from isotherm.daemon.accelerator_metrics import AcceleratorMetrics
from isotherm.daemon.accelerator_stats import AcceleratorStats
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.metrics import _Merged
from isotherm.daemon.metrics import Metrics
from isotherm.daemon.pace_metrics import PaceMetrics
from isotherm.daemon.status import EngineStats
from prometheus_client.metrics_core import Metric

PLAN = SimpleNamespace(
    predicted_decode_tok_s=SimpleNamespace(value=10.0), predicted_prefill_tok_s=SimpleNamespace(value=100.0)
)


def families() -> list[Metric]:
    """Of a daemon with one model. Those of speed are twice here: a daemon has the one collector or the other."""
    stats = EngineStats(decode_rate=1.0, prefill_rate=1.0, queued={"a": (1, 1)})
    accelerators = AcceleratorStats(
        devices=(), experts=0, hits=0, given_back_bytes=0, decode_tok_s=None, prefill_tok_s=None
    )
    metrics = Metrics(lambda: stats, EventLog())
    metrics.add(PaceMetrics(lambda: stats, PLAN))
    metrics.add(HttpMetrics())
    return [*metrics._registry.collect(), *AcceleratorMetrics(lambda: accelerators, PLAN).collect()]


def families_of_several() -> list[Metric]:
    """What a daemon with several models tells besides."""
    member = {"id": "a", "state": "ready", "waiting": 0, "loads": 1}
    events = "isotherm_fallback_events"
    return [each for each in _Merged({}, EventLog(), [member]).collect() if each.name != events]
