"""The HTTP server of a daemon: uvicorn in the main thread, with a drain that the engine takes part in."""

import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ..assembly import Assembly
from .address import BindError
from .connection import Connection
from .output import ExitCode


class DaemonServer(uvicorn.Server):
    """Serves until a signal comes or the engine fails.

    The first SIGTERM or SIGINT refuses new requests and lets the open ones finish for the config's `drain_s` seconds;
    the second cuts them off. on_ready is called when the server listens.
    """

    def __init__(self, app: FastAPI, assembly: Assembly, on_ready: Callable[[], None]) -> None:
        config = assembly.config
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                access_log=config.log_level == "debug",
                lifespan="off",
                timeout_graceful_shutdown=int(config.drain_s) + 10,
            )
        )
        self._assembly = assembly
        self._on_ready = on_ready
        self._drain: threading.Thread | None = None

    def serve_on(self, listener: socket.socket) -> ExitCode | None:
        """Run the engine and serve until the end; why it ended, None if it was told to. Raises BindError."""
        engine = self._assembly.engine
        engine.start()
        try:
            self.run(sockets=[listener])
        except OSError as error:  # another program began to listen while the model loaded
            raise BindError(f"cannot listen any more: {error}") from error
        finally:
            if self._drain is not None and not self.force_exit:
                self._drain.join()
            failed = engine.stats().state == "failed"
            engine.stop()
        if failed:
            return ExitCode.ENGINE
        return ExitCode.FORCED if self.force_exit else None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        self._assembly.sample()
        if self._assembly.engine.stats().state == "failed":
            return True
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        engine, drain_s = self._assembly.engine, self._assembly.config.drain_s
        if self.should_exit:
            self.force_exit = True
            threading.Thread(target=engine.stop, name="isotherm-stop", daemon=True).start()
            return
        self.should_exit = True
        self._drain = threading.Thread(target=engine.drain, args=(drain_s,), name="isotherm-drain", daemon=True)
        self._drain.start()
