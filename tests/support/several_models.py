"""A server of several scripted models, of which a few fit into memory at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from isotherm.api.app import create_app
from isotherm.api.server import Server
from isotherm.api.service import Limits
from isotherm.daemon.events import EventLog
from isotherm.daemon.fleet.fleet import Fleet
from isotherm.daemon.memory import MemoryPlanError
from support.api_service import AsLoaded, OneLineMetrics, make_service
from support.scripted_engine import ScriptedEngine, Step


class Shelf:
    """Models by their ids, each with the script of its engine. room: how many may be loaded. gates: what a load waits
    for. broken: why one cannot be loaded."""

    def __init__(self, scripts: dict[str, list[Step]], *, room: int = 1, limits: Limits | None = None) -> None:
        self.engines = {name: ScriptedEngine(lambda _, steps=steps: steps) for name, steps in scripts.items()}
        self.events, self.limits = EventLog(), limits or Limits()
        self.room = room
        self.gates: dict[str, threading.Event] = {}
        self.broken: dict[str, Exception] = {}
        self.log: list[str] = []
        self.fleet: Fleet[Any] = Fleet(tuple(scripts), self, self.events, free=self._free)

    @property
    def server(self) -> Server:
        return Server(
            models=self.fleet,
            created=1_700_000_000,
            metrics=OneLineMetrics(),
            events=self.events,
            status=lambda model: {"state": "ready", "model": model},
            limits=self.limits,
        )

    @property
    def app(self) -> FastAPI:
        return create_app(self.server)

    def _free(self) -> int:
        return self.room - sum(1 for _ in self.fleet.loaded())

    def demand(self, name: str) -> Callable[[int], object]:
        def enough(free: int) -> None:
            if free < 1:
                raise MemoryPlanError(f"there is no room for {name}")

        return enough

    def load(self, name: str, progress: object) -> AsLoaded:
        if name in self.gates:
            assert self.gates[name].wait(20)
        if name in self.broken:
            raise self.broken[name]
        self.log.append(f"+{name}")
        service = make_service(self.engines[name], model_id=name, events=self.events, limits=self.limits)
        return AsLoaded(service, 1, lambda: self.log.append(f"-{name}"))

    def tidy(self) -> None:
        pass


@asynccontextmanager
async def asking(shelf: Shelf) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(shelf.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)
