"""Recording: gives each request its id and its record, and hands the record on when the request has ended."""

import logging
import re
import time
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .record import Record, Sink

logger = logging.getLogger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_TRACE_HEADERS = ("traceparent", "tracestate")


class Recording:
    """The outermost middleware. Each response gets an x-request-id: the client's own if it is a sane one, else a new
    one. A sink that fails is told in the log, and fails no request."""

    def __init__(self, app: ASGIApp, sinks: Sequence[Sink]) -> None:
        self.app = app
        self.sinks = sinks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record, began = _record(scope), time.monotonic()
        scope.setdefault("state", {}).update(request_id=record.request_id, record=record, began=began)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
                record.status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except BaseException:
            record.outcome = "failed"
            raise
        finally:
            record.duration_s = time.monotonic() - began
            self._tell(record, scope)

    def _tell(self, record: Record, scope: Scope) -> None:
        record.route = getattr(scope.get("route"), "path", "")
        record.key_name = scope["state"].get("key_name", "")
        if record.status >= 400 and record.outcome == "answered":
            record.outcome = "gone" if record.status == 499 else "refused" if record.status < 500 else "failed"
        for sink in self.sinks:
            try:
                sink(record)
            except Exception:
                logger.exception("request %s could not be told", record.request_id)


def _record(scope: Scope) -> Record:
    headers = Headers(scope=scope)
    theirs = headers.get("x-request-id", "")
    return Record(
        request_id=theirs if _SANE_ID.fullmatch(theirs) else uuid.uuid4().hex,
        method=scope.get("method", ""),
        started=time.time(),
        trace={name: headers[name] for name in _TRACE_HEADERS if name in headers},
    )
