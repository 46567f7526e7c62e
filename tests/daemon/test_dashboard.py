"""The dashboard asks only for metrics that exist, and all that matter."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

from isotherm.api.http_metrics import HttpMetrics
from isotherm.daemon.accelerator_metrics import AcceleratorMetrics
from isotherm.daemon.accelerator_stats import AcceleratorStats
from isotherm.daemon.events import EventLog
from isotherm.daemon.metrics import Metrics
from isotherm.daemon.pace_metrics import PaceMetrics
from isotherm.daemon.status import EngineStats
from prometheus_client.metrics_core import Metric

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "isotherm.json"
PLAN = SimpleNamespace(
    predicted_decode_tok_s=SimpleNamespace(value=10.0), predicted_prefill_tok_s=SimpleNamespace(value=100.0)
)
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def families() -> list[Metric]:
    """All that a daemon can tell."""
    stats = EngineStats(decode_rate=1.0, prefill_rate=1.0, queued={"a": (1, 1)})
    accelerators = AcceleratorStats(
        devices=(), experts=0, hits=0, given_back_bytes=0, decode_tok_s=None, prefill_tok_s=None
    )
    metrics = Metrics(lambda: stats, EventLog())
    metrics.add(PaceMetrics(lambda: stats, PLAN))
    metrics.add(HttpMetrics())
    return [*metrics._registry.collect(), *AcceleratorMetrics(lambda: accelerators, PLAN).collect()]


def asked() -> set[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {name for p in panels for t in p["targets"] for name in re.findall(r"\bisotherm_\w+", t["expr"])}


def test_every_query_names_a_metric_that_exists() -> None:
    """[55]"""
    known = {family.name + suffix for family in families() for suffix in _SUFFIXES[family.type]}
    assert asked()
    assert asked() - known == set()


def test_no_two_collectors_of_a_daemon_tell_one_name() -> None:
    names = [family.name for family in families()]
    twice = {name for name in names if names.count(name) > 1}
    # A daemon has the one collector of speed or the other.
    assert twice == {"isotherm_predicted_tokens_per_second", "isotherm_measured_tokens_per_second"}
