"""What is told of a request when it has ended: to the access log, to metrics, to traces."""

import asyncio
import sys
from pathlib import Path

import httpx
import orjson
import pytest
from isotherm.api.access_log import AccessLog
from isotherm.api.http_metrics import HttpMetrics
from isotherm.api.record import Record
from isotherm.api.traces import MissingPackagesError, Traces, send_traces
from isotherm.daemon.config import key_digest
from isotherm.daemon.errors import EngineError, OverloadedError
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from support.api_service import CHAT, COMPLETIONS, MODEL, app_of, call, chat, make_service, serving, wait_until
from support.scripted_engine import HANG, ScriptedEngine, Step, says

SECRET = "a text that is nobody's business"


def recorded(engine: ScriptedEngine | list[Step] | str = "Hi", **changes: object) -> tuple[list[Record], object]:
    records: list[Record] = []
    return records, make_service(engine, sinks=(records.append,), **changes)


def test_a_request_is_told_once_with_its_tokens_and_times() -> None:
    """[54]"""
    for stream in (True, False):
        records, service = recorded(says("Hi", 0.01))
        chat(service, stream=stream, n=2)
        (record,) = records
        assert (record.method, record.route, record.status, record.outcome) == ("POST", CHAT, 200, "answered")
        assert (record.stream, record.choices) == (stream, 2)
        assert record.usage is not None and record.usage.completion_tokens == 6
        assert record.first_output_s is not None and 0.01 <= record.first_output_s <= record.duration_s


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_breaks_off_has_failed(stream: bool) -> None:
    records, service = recorded([*says("H"), EngineError("broken")])
    chat(service, stream=stream)
    assert [record.outcome for record in records] == ["failed"]


def test_a_refusal_is_told_without_tokens() -> None:
    records, service = recorded(ScriptedEngine(lambda submit: [], refuse=OverloadedError("full", 2.5)))
    chat(service)
    (record,) = records
    assert (record.status, record.outcome, record.usage) == (429, "refused", None)


def test_a_client_that_left_is_told_as_gone() -> None:
    engine = ScriptedEngine(lambda submit: [*says("Hi"), HANG])
    records, service = recorded(engine)
    with serving(service) as port:
        url, body = f"http://127.0.0.1:{port}{COMPLETIONS}", {"prompt": "x", "stream": True}
        with httpx.stream("POST", url, json=body, timeout=20) as response:
            next(response.iter_lines())
        wait_until(lambda: records)
    (record,) = records
    assert record.outcome == "gone"
    assert record.usage is not None
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (2, 2)  # what it has got counts


def test_a_key_is_told_by_its_name() -> None:
    digest = key_digest("sesame")
    records, service = recorded(api_keys=frozenset({digest}), key_names={digest: "editor"})
    for key in ("sesame", "wrong"):
        call(service, "GET", "/version", headers={"authorization": f"Bearer {key}"})
    assert [(record.status, record.key_name) for record in records] == [(200, "editor"), (401, "")]


def test_requests_are_charged_to_the_name_of_their_key() -> None:
    digests = {key_digest("one"): "team", key_digest("two"): "team"}
    service = make_service(api_keys=frozenset(digests), key_names=digests)
    for key in ("one", "two"):
        call(service, "POST", COMPLETIONS, json={"prompt": "x"}, headers={"x-api-key": key})
    assert {submit.tenant for submit in service.client.submitted} == {"team"}
    assert len({submit.cache_salt for submit in service.client.submitted}) == 1


def test_salts_of_tenants_cannot_be_made_equal() -> None:
    """[44] Names of any length stand before what clients choose."""
    digests = {key_digest("one"): "a", key_digest("two"): "ab"}
    service = make_service(api_keys=frozenset(digests), key_names=digests)
    for key, salt in (("one", "bc"), ("two", "c")):
        body = {"prompt": "x", "cache_salt": salt}
        call(service, "POST", COMPLETIONS, json=body, headers={"x-api-key": key})
    assert len({submit.cache_salt for submit in service.client.submitted}) == 2


def test_a_sink_that_fails_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:

    def sink(record: Record) -> None:
        raise OSError("no space left")

    assert chat(make_service("Hi", sinks=(sink,))).status_code == 200
    assert "could not be told" in caplog.text


def test_the_access_log_has_a_line_of_json_for_each_request_and_no_text(tmp_path: Path) -> None:
    log = AccessLog(tmp_path / "access.log")
    service = make_service(SECRET, sinks=(log,))
    chat(service, SECRET)
    call(service, "GET", f"/nowhere/{SECRET}", headers={"x-request-id": "abc"})
    log.close()
    text = (tmp_path / "access.log").read_text()
    first, second = map(orjson.loads, text.splitlines())
    assert (first["route"], first["status"], first["completion_tokens"]) == (CHAT, 200, len(SECRET) + 1)
    assert (second["request_id"], second["status"], second["outcome"]) == ("abc", 404, "refused")
    assert "route" not in second and "completion_tokens" not in second
    assert SECRET not in text


def test_the_access_log_follows_its_file(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    log = AccessLog(path)
    service = make_service(sinks=(log,))
    call(service, "GET", "/health")
    path.rename(tmp_path / "access.log.1")
    call(service, "GET", "/health")
    log.close()
    assert len(path.read_text().splitlines()) == 1


def test_http_metrics_count_by_route_status_and_key() -> None:
    metrics, registry = HttpMetrics(), CollectorRegistry()
    registry.register(metrics)
    digest = key_digest("sesame")
    service = make_service("Hi", sinks=(metrics,), api_keys=frozenset({digest}), key_names={digest: "editor"})
    for path in (COMPLETIONS, COMPLETIONS, "/nowhere"):
        call(service, "POST", path, json={"prompt": "xy"}, headers={"x-api-key": "sesame"})
    call(service, "BREW", "/nowhere")
    text = generate_latest(registry).decode()
    assert f'isotherm_http_requests_total{{method="POST",route="{COMPLETIONS}",status="200"}} 2.0' in text
    assert 'isotherm_http_requests_total{method="POST",route="none",status="404"} 1.0' in text
    assert 'isotherm_http_requests_total{method="other",route="none",status="401"} 1.0' in text
    assert 'isotherm_key_tokens_total{key="editor",kind="prompt"} 6.0' in text
    assert 'isotherm_key_tokens_total{key="editor",kind="generation"} 6.0' in text
    assert f'isotherm_http_request_duration_seconds_count{{route="{COMPLETIONS}"}} 2.0' in text


def traced(path: str, *, headers: dict[str, str] | None = None, service_of: object = "Hi") -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter), MODEL)
    service = make_service(service_of, sinks=(traces,))
    body = {"prompt": "x", "messages": [{"role": "user", "content": SECRET}]}
    asyncio.run(_post(service, path, body, headers))
    traces.close()
    return exporter.get_finished_spans()


async def _post(service: object, path: str, body: object, headers: dict[str, str] | None) -> None:
    transport = httpx.ASGITransport(app_of(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.request("POST" if path.startswith("/v1") else "GET", path, json=body, headers=headers)


def test_a_trace_names_the_model_and_counts_tokens() -> None:
    (span,) = traced(CHAT)
    attributes = span.attributes or {}
    assert span.name == f"chat {MODEL}"
    assert (attributes["gen_ai.usage.output_tokens"], attributes["http.route"]) == (3, CHAT)
    assert [event.name for event in span.events] == ["gen_ai.first_token"]
    assert SECRET not in str(span.to_json())


def test_a_clients_trace_is_continued() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    (span,) = traced(COMPLETIONS, headers={"traceparent": parent})
    assert span.parent is not None
    assert format(span.parent.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"


def test_a_failed_answer_is_a_failed_span() -> None:
    (span,) = traced(CHAT, service_of=[EngineError("broken")])
    assert not span.status.is_ok
    assert (span.attributes or {})["error.type"] == "failed"


def test_what_generates_nothing_has_no_trace() -> None:
    assert traced("/health") == ()


def test_traces_without_their_packages_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(MissingPackagesError, match=r"isotherm\[otel\]"):
        send_traces("http://localhost:4318", MODEL)


def test_completions_are_told_by_their_own_operation() -> None:
    (span,) = traced(COMPLETIONS)
    assert span.name == f"text_completion {MODEL}"
