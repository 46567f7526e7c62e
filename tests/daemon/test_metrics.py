"""Metrics by their exposition text, and the event log."""

import logging

import pytest
from isotherm.daemon.events import EventLog
from isotherm.daemon.messages import Usage
from isotherm.daemon.metrics import Metrics, RequestTimer
from isotherm.daemon.status import EngineStats
from prometheus_client.parser import text_string_to_metric_families

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3)


def samples(metrics: Metrics) -> dict[str, float]:
    """Values by name, with the labels other than bucket bounds in braces."""
    result = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            if "le" not in sample.labels:
                labels = ",".join(sample.labels.values())
                result[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return result


def make_metrics(stats: EngineStats | None = None, events: EventLog | None = None) -> Metrics:
    return Metrics(lambda: stats or EngineStats(), events or EventLog())


def test_a_request_observes_each_latency_once_and_a_gap_per_further_token():
    metrics = make_metrics()
    timer = RequestTimer(metrics, arrived=100.0)
    for now in (101.0, 102.0):
        timer.scheduled(now)
    for now in (103.0, 103.5, 104.5):
        timer.token(now)
    timer.ended("stop", USAGE, 105.0)
    values = samples(metrics)
    assert values["isotherm_request_queue_time_seconds_sum"] == 1.0
    assert values["isotherm_request_queue_time_seconds_count"] == 1
    assert values["isotherm_time_to_first_token_seconds_sum"] == 3.0
    assert values["isotherm_time_to_first_token_seconds_count"] == 1
    assert values["isotherm_inter_token_latency_seconds_sum"] == 1.5
    assert values["isotherm_inter_token_latency_seconds_count"] == 2
    assert values["isotherm_e2e_request_latency_seconds_sum"] == 5.0


def test_ended_requests_count_by_reason_with_their_tokens():
    metrics = make_metrics()
    metrics.count_ended("stop", USAGE)
    metrics.count_ended("stop", USAGE)
    metrics.count_ended("error", None)
    values = samples(metrics)
    assert values["isotherm_request_finished_total{stop}"] == 2
    assert values["isotherm_request_finished_total{error}"] == 1
    assert values["isotherm_prompt_tokens_total"] == 20
    assert values["isotherm_prompt_tokens_cached_total"] == 8
    assert values["isotherm_generation_tokens_total"] == 6


def test_the_engine_stats_are_read_when_asked():
    stats = EngineStats(
        state="ready",
        running=2,
        waiting=3,
        kv_blocks=8,
        kv_blocks_free=2,
        preemptions=5,
        prefix_queried_tokens=70,
        prefix_hit_tokens=30,
        audit_failures=1,
    )
    values = samples(make_metrics(stats))
    assert values["isotherm_requests_running"] == 2
    assert values["isotherm_requests_waiting"] == 3
    assert values["isotherm_kv_cache_usage_ratio"] == 0.75
    assert values["isotherm_preemptions_total"] == 5
    assert values["isotherm_prefix_cache_queries_total"] == 70
    assert values["isotherm_prefix_cache_hits_total"] == 30
    assert values["isotherm_audit_failures_total"] == 1
    assert values["isotherm_ready"] == 1


def test_events_count_by_name():
    events = EventLog()
    events.record("weights_reencoded", "blk.0 in IQ3_S is kept in 8 bits")
    events.record("weights_reencoded", "blk.1 in IQ3_S is kept in 8 bits")
    assert samples(make_metrics(events=events))["isotherm_fallback_events_total{weights_reencoded}"] == 2


def test_two_objects_share_nothing():
    first, second = make_metrics(), make_metrics()
    first.count_ended("stop", USAGE)
    assert samples(second)["isotherm_prompt_tokens_total"] == 0


def test_every_name_has_the_prefix():
    families = list(text_string_to_metric_families(make_metrics().render().decode()))
    assert families and all(family.name.startswith("isotherm_") for family in families)


def test_the_log_keeps_the_latest_events_but_counts_all():
    events = EventLog(capacity=2)
    for detail in ("one", "two", "three"):
        events.record("slow_disk", detail)
    assert [event.detail for event in events.recent()] == ["two", "three"]
    assert events.counts() == {"slow_disk": 3}


def test_an_event_is_logged(caplog):
    with caplog.at_level(logging.INFO):
        EventLog().record("no_avx512", "AVX2 kernels are used", logging.INFO)
    assert "no_avx512: AVX2 kernels are used" in caplog.text


@pytest.mark.parametrize(("busy", "age"), [(True, 7.0), (False, 0.0)])
def test_a_step_ages_only_while_the_engine_is_busy(busy, age):
    assert EngineStats(busy=busy, heartbeat=3.0).step_age(now=10.0) == age
