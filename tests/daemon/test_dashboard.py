"""The dashboard asks only for metrics that exist, and all that matter."""

import json
import re
from pathlib import Path

from support.metric_families import families

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "isotherm.json"
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


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
