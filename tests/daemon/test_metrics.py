"""Metrics by their exposition text, and the event log."""

import logging

import pytest
from isotherm.daemon.events import EventLog
from isotherm.daemon.messages import Usage
from isotherm.daemon.metrics import Metrics, RequestTimer
from isotherm.daemon.status import EngineStats
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.daemon.step_counts import StepCounts
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
    """[54]"""
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
    assert values["isotherm_time_per_output_token_seconds_sum"] == 0.75
    assert values["isotherm_time_per_output_token_seconds_count"] == 1


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


def test_what_waits_is_told_by_key():
    values = samples(make_metrics(EngineStats(queued={"editor": (2, 70), "agent": (1, 5)})))
    assert (values["isotherm_queued_requests{editor}"], values["isotherm_queued_tokens{editor}"]) == (2, 70)
    assert values["isotherm_queued_requests{agent}"] == 1


def test_the_alias_set_tells_the_same_numbers_by_other_names():
    """[55]"""
    metrics = make_metrics(EngineStats(running=2, waiting=3, preemptions=5))
    metrics.add_alias("tiny")
    timer = RequestTimer(metrics, arrived=100.0)
    timer.scheduled(100.5)
    for now in (101.0, 102.0):
        timer.token(now)
    timer.ended("stop", USAGE, 105.0)
    values = samples(metrics)
    labels = "{0,tiny}"
    for name, value in {
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0,
        "num_preemptions_total": 5,
        "prefix_cache_queries_total": 0,
        "prefix_cache_hits_total": 0,
        "prompt_tokens_total": 10,
        "generation_tokens_total": 3,
        "time_to_first_token_seconds_sum": 1,
        "inter_token_latency_seconds_count": 1,
        "request_time_per_output_token_seconds_sum": 1,
        "request_queue_time_seconds_sum": 0.5,
        "e2e_request_latency_seconds_count": 1,
    }.items():
        assert values[f"vllm:{name}{labels}"] == value, name
    assert values["vllm:request_success_total{0,stop,tiny}"] == 1
    assert values["isotherm_requests_running"] == 2


def test_a_request_of_one_token_has_no_mean_gap():
    metrics = make_metrics()
    timer = RequestTimer(metrics, arrived=100.0)
    timer.token(101.0)
    timer.ended("stop", USAGE, 105.0)
    assert samples(metrics)["isotherm_time_per_output_token_seconds_count"] == 0


@pytest.mark.parametrize(("lengths", "phase"), [((1, 1), "decode"), ((5, 3), "prefill"), ((1, 5), None)])
def test_speed_is_of_steps_that_did_one_thing(lengths, phase):
    counts = StepCounts()
    chunks = tuple(Chunk(str(n), [1] * length, 0, [0], True) for n, length in enumerate(lengths))
    counts.add(StepPlan(chunks), 2.0)
    rates = {"decode": counts.decode_rate, "prefill": counts.prefill_rate}
    assert rates == {name: sum(lengths) / 2 if name == phase else None for name in rates}
    assert counts.decode_tokens + counts.prefill_tokens == sum(lengths)


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
