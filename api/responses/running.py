"""Running: the responses that are being made, so that they can be looked at and cancelled."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...daemon.client import EngineClient
from .dialect import ResponsesDialect


@dataclass(eq=False, slots=True)
class Run:
    """dialect: what writes it. request_ids: those of the engine, which `client` speaks to. over: set when nothing more
    will come of it."""

    dialect: ResponsesDialect
    request_ids: Sequence[str]
    client: EngineClient
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Running:
    """The runs of a server, each found by its tenant and the response's id. Used on the event loop only."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Run] = {}

    @contextmanager
    def entered(self, tenant: str, response_id: str, run: Run) -> Iterator[None]:
        """Have the run found until it is over."""
        self._runs[tenant, response_id] = run
        try:
            yield
        finally:
            del self._runs[tenant, response_id]
            run.over.set()

    def find(self, tenant: str, response_id: str) -> Run | None:
        """The run, None if there is none of this id or its answer has ended."""
        run = self._runs.get((tenant, response_id))
        return None if run is None or run.dialect.final is not None else run

    async def cancel(self, run: Run) -> None:
        """End a run with what there is of its answer. Returns when it is over."""
        run.dialect.cancelled = True
        for request_id in run.request_ids:
            run.client.abort(request_id, "stop")  # as if the model had ended it
        await run.over.wait()
