"""The HTTP server of a daemon: uvicorn in the main thread, with a drain that the engine takes part in."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from ..config import Config
from ..engine import Engine
from ..fleet.fleet import Fleet
from ..fleet.host import Hosted
from ..pressure import PressureWatch
from .address import BindError
from .connection import Connection
from .output import ExitCode

HTTP_LIMIT_S = 60.0  # an event loop that does not go round for so long hangs


class DaemonServer(uvicorn.Server):
    """Serves until a signal comes or an engine fails.

    The first SIGTERM or SIGINT refuses new requests and lets the open ones finish for the config's `drain_s` seconds;
    the second cuts them off. on_ready is called when the server listens, on_stopping when it is told to end or has to.
    watch: what sees to memory.
    """

    def __init__(
        self,
        app: FastAPI,
        fleet: Fleet[Hosted[Any]],
        config: Config,
        on_ready: Callable[[], None],
        watch: PressureWatch | None = None,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                access_log=config.log_level == "debug",
                lifespan="off",
                timeout_graceful_shutdown=_connections_s(config.drain_s),
            )
        )
        self._fleet, self._drain_s = fleet, config.drain_s
        self._on_ready, self._on_stopping, self._watch = on_ready, on_stopping, watch
        self._ticked = time.monotonic()
        self._drain: threading.Thread | None = None

    def serve_on(self, listener: socket.socket) -> ExitCode | None:
        """Serve until the end, and unload the models; why it ended, None if it was told to. Raises BindError."""
        self._ticked = time.monotonic()
        try:
            self.run(sockets=[listener])
        except OSError as error:  # another program began to listen while the model loaded
            raise BindError(f"cannot listen any more: {error}") from error
        finally:
            if self._drain is not None and not self.force_exit:
                self._drain.join()
            failed = self._failed()
            self._fleet.close()
        if failed:
            return ExitCode.ENGINE
        return ExitCode.FORCED if self.force_exit else None

    def drain_for(self, seconds: float) -> None:
        """Give open requests so long when the daemon is told to stop."""
        self._drain_s = seconds
        self.config.timeout_graceful_shutdown = _connections_s(seconds)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        self._ticked = time.monotonic()
        for _, hosted in self._fleet.loaded():
            hosted.assembly.sample()
        self._fleet.let_go()
        self._fleet.heal()
        if self._watch is not None:
            self._watch.look()
        if self._fleet.lost is not None:
            self._on_stopping()
            return True
        return await super().on_tick(counter)

    def fault(self, now: float) -> str | None:
        """Why the HTTP side cannot be called alive at `now` in monotonic seconds; None if it can, or ends anyway."""
        silence = now - self._ticked
        if self.should_exit or silence <= HTTP_LIMIT_S:
            return None
        return f"the event loop of the HTTP side has not gone round for {silence:.0f} s"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        engines = [hosted.assembly.engine for _, hosted in self._fleet.loaded()]
        if self.should_exit:
            self.force_exit = True
            for engine in engines:
                threading.Thread(target=engine.stop, name="isotherm-stop", daemon=True).start()
            return
        self.should_exit = True
        self._on_stopping()
        self._fleet.shut("the engine is shutting down")
        self._drain = threading.Thread(target=self._drain_all, args=(engines,), name="isotherm-drain", daemon=True)
        self._drain.start()

    def _drain_all(self, engines: Sequence[Engine]) -> None:
        drains = [threading.Thread(target=engine.drain, args=(self._drain_s,), daemon=True) for engine in engines]
        for drain in drains:
            drain.start()
        for drain in drains:
            drain.join()

    def _failed(self) -> bool:
        engines = (hosted.assembly.engine for _, hosted in self._fleet.loaded())
        return self._fleet.lost is not None or any(engine.stats().state == "failed" for engine in engines)


def _connections_s(drain_s: float) -> int:
    """Until connections are cut: last words are sent after the engine's drain."""
    return int(drain_s) + 10
