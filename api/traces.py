"""Traces: a span for each request that generates, by OpenTelemetry's conventions for generative AI.

The packages come with the extra `otel`; nothing is imported unless traces are asked for.
"""

from typing import TYPE_CHECKING, Any

from .. import __version__
from .record import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

_NS = 1e9


class MissingPackagesError(RuntimeError):
    """OpenTelemetry is not installed."""


class Traces:
    """A sink of records. A client's traceparent is continued. Spans are sent by a thread, in batches."""

    def __init__(self, processor: "SpanProcessor", model: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "isotherm", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("isotherm")
        self._model = model

    def __call__(self, record: Record) -> None:
        if not record.choices:
            return
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        start = int(record.started * _NS)
        span = self._tracer.start_span(
            f"{_operation(record.route)} {self._model}",
            context=TraceContextTextMapPropagator().extract(record.trace),
            kind=SpanKind.SERVER,
            start_time=start,
            attributes=self._attributes(record),
        )
        if record.first_output_s is not None:
            span.add_event("gen_ai.first_token", timestamp=start + int(record.first_output_s * _NS))
        if record.outcome in ("failed", "gone"):
            span.set_attribute("error.type", record.outcome)
            span.set_status(StatusCode.ERROR)
        span.end(end_time=start + int(record.duration_s * _NS))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _attributes(self, record: Record) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": _operation(record.route),
            "gen_ai.provider.name": "isotherm",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
            "gen_ai.request.choice.count": record.choices,
            "http.request.method": record.method,
            "http.route": record.route,
            "http.response.status_code": record.status,
            "isotherm.request_id": record.request_id,
        }
        if record.key_name:
            attributes["enduser.id"] = record.key_name
        if record.usage is not None:
            attributes["gen_ai.usage.input_tokens"] = record.usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = record.usage.completion_tokens
            attributes["gen_ai.usage.cached_input_tokens"] = record.usage.cached_tokens
        if record.first_output_s is not None:
            attributes["gen_ai.server.time_to_first_token"] = record.first_output_s
        return attributes


def send_traces(url: str, model: str) -> Traces:
    """Traces that go to a collector of OTLP over HTTP. Raises MissingPackagesError."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingPackagesError(f"--traces needs OpenTelemetry ({error}): pip install 'isotherm[otel]'") from error
    return Traces(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)), model)


def _operation(route: str) -> str:
    words = ("chat", "messages", "responses")
    return "chat" if any(word in route for word in words) else "text_completion"
