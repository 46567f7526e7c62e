"""Creator: makes the response of a request to /v1/responses."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...daemon.errors import ContextLengthError
from ..body import parse
from ..chat.bounds import MAX_MESSAGES, check_count
from ..chat.prepare import Conversation, prepare
from ..fields import FieldNotes
from ..framing import Framing, named_frame
from ..sampling import check_model
from ..service import Service
from ..stream import Exchange
from .dialect import ResponsesDialect
from .items import Item, read_items
from .record import ResponseRecord
from .request import ResponsesRequest
from .running import Run, Running
from .store import ResponseStore, Stored
from .truncation import longest_that_fits
from .wish import check_options, read_wish


class Creator:
    """Knows where responses are kept."""

    def __init__(self, service: Service, notes: FieldNotes, store: ResponseStore, running: Running) -> None:
        self._service = service
        self._notes = notes
        self._store = store
        self._running = running

    def make(self, raw: bytes, tenant: str) -> Response:
        """Check a request, and answer it when called. Raises RequestError or UnknownModelError."""
        body = parse(raw, ResponsesRequest)
        check_model(self._service, body.model)
        check_options(body, self._notes)
        items = (*self._store.items_before(tenant, body.previous_response_id), *read_items(body.input))
        check_count(items, MAX_MESSAGES, "input")
        conversation = self._conversation(body, items, tenant)
        record = ResponseRecord(self._service.model_id, body)

        def ended(response: dict[str, Any]) -> None:
            if body.store is not False:
                self._store.put(tenant, Stored(response, items))

        dialect = ResponsesDialect(record, ended)
        framing = Framing("text/event-stream", named_frame, b": ping\n\n", b"", dialect.failure, opens_at_once=True)
        exchange = Exchange(self._service, conversation.job(dialect, framing))
        run = Run(dialect, [submit.request_id for submit in conversation.submits], self._service.client)
        return _Tracked(exchange, partial(self._running.entered, tenant, record.id, run))

    def _conversation(self, body: ResponsesRequest, items: Sequence[Item], tenant: str) -> Conversation:
        """Raises ContextLengthError for a prompt that is too long, unless it may be truncated."""

        def attempt(kept: Sequence[Item]) -> Conversation:
            return prepare(self._service, read_wish(body, kept), tenant)

        try:
            return attempt(items)
        except ContextLengthError:
            if body.truncation != "auto":
                raise
        return longest_that_fits(items, attempt)


class _Tracked(Response):
    """An exchange that is found among the running ones."""

    def __init__(self, exchange: Exchange, entered: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._exchange = exchange
        self._entered = entered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._entered():
            await self._exchange(scope, receive, send)
