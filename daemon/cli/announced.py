"""What others are told of a daemon: by its state file, by the service manager's socket, on the terminal, in the log."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...experts.progress import Progress
from ..config import Config
from ..notify import Notifier, watchdog_s
from ..process_start import process_start
from ..state import DaemonState, remove_state, write_state
from ..watchdog import Watch, Watchdog
from .background import hints
from .output import ExitCode, err, fail
from .progress import both, progress_bars, stage_lines

if TYPE_CHECKING:
    from ..fleet.fleet import Fleet
    from ..fleet.host import Hosted

logger = logging.getLogger(__name__)

_WRITE_EVERY_S = 0.2  # of the progress in the state file
_RESTART_S = 60.0  # of an engine
_AGAIN_S = 1.0  # until a state file that could not be written is tried again
_TIDY_S = 60.0  # what an end may take beyond the drain: a step under way, and what is kept of the traffic


class State:
    """The daemon's state file, kept up to date, and what its service manager is told."""

    def __init__(self, config: Config, log: Path | None, notifier: Notifier) -> None:
        self._notifier = notifier
        self._watchdog: Watchdog | None = None
        self._value = DaemonState(
            pid=os.getpid(),
            started=process_start() or "",
            port=config.port,
            url=_url(config),
            model=config.model_id,
            log=None if log is None else str(log),
            drain_s=config.drain_s,
        )
        self._written = 0.0
        self._fault = ""
        self._lock = threading.Lock()  # of the file, and of what follows
        self._again: threading.Timer | None = None
        self._ended = False
        write_state(self._value)

    def ready(self) -> None:
        """The daemon answers."""
        self._value = replace(self._value, phase="ready", stage="", done=0, total=0)
        self._write()
        logger.info("serving %s at %s/v1", self._value.model, self._value.url)
        self._notifier.ready(self._words())
        if self._watchdog is not None:
            self._watchdog.start()
        if self._value.log is None and err.is_terminal:
            for line in hints(self._value.port, self._value.url):
                err.print(line, markup=False, highlight=False, soft_wrap=True)

    def watch(self, http: Watch, fleet: "Fleet[Hosted[Any]]", step_limit_s: float) -> None:
        """From `ready` on, give signs of life if the service manager waits for them: while each loaded model's engine
        gets on and HTTP does, for an HTTP side alone would serve nobody. A step beyond its limit is given the time in
        which the engine is started anew."""
        from ..pulse import EnginesWatch  # it takes long to import

        period_s = watchdog_s(os.environ)
        if period_s is not None:
            engines = EnginesWatch(
                lambda: [hosted.assembly.engine.client for _, hosted in fleet.loaded()], step_limit_s + _RESTART_S
            )
            self._watchdog = Watchdog(self._notifier, (engines.fault, http), lambda: self._words_of(fleet), period_s)

    def reload(self, work: Callable[[], str]) -> None:
        """Reload, and tell the service manager of it."""
        self._notifier.reload(lambda: f"{work()}; {self._words()}")

    def drain_for(self, seconds: float) -> None:
        """From now on open requests get so long when the daemon ends."""
        self._value = replace(self._value, drain_s=seconds)
        self._write()

    def _words(self) -> str:
        """What a service manager shows of a daemon that serves."""
        return f"serving {self._value.model} at {self._value.url}/v1"

    def _words_of(self, fleet: "Fleet[Hosted[Any]]") -> str:
        loaded = {name: hosted.assembly.engine.stats() for name, hosted in fleet.loaded()}
        running, waiting = (sum(getattr(each, field) for each in loaded.values()) for field in ("running", "waiting"))
        names = ", ".join(loaded) or f"{self._value.model} when it is asked for"
        return f"serving {names} at {self._value.url}/v1; {running} running, {waiting} waiting"

    def stopping(self) -> None:
        """The daemon ends."""
        if self._watchdog is not None:
            self._watchdog.end()
        self._notifier.stopping("open requests may finish", self._value.drain_s + _TIDY_S)

    def forget(self) -> None:
        """Remove the state file, for good. One that a read-only folder keeps is known to be stale."""
        with self._lock:
            self._ended = True
            try:
                remove_state(self._value.port)
            except OSError as error:
                logger.warning("the state file cannot be removed: %s", error)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """The progress of the load: for the service manager, and the waiting parent, else the terminal or the log."""
        if self._value.log is None:
            with progress_bars() as report:
                yield both(report, self._notifier.loading)
            return
        log_stage = stage_lines()

        def report_all(stage: str, done: int, total: int) -> None:
            log_stage(stage, done, total)
            is_new = stage != self._value.stage
            self._value = replace(self._value, stage=stage, done=done, total=total)
            if is_new or time.monotonic() - self._written > _WRITE_EVERY_S:
                self._write()

        yield both(report_all, self._notifier.loading)

    def _write(self) -> None:
        """Where the file cannot be written, that is told once and tried again: the daemon serves without it."""
        with self._lock:
            if self._ended:
                return
            self._written = time.monotonic()
            try:
                write_state(self._value)
                self._fault = ""
            except OSError as error:
                if str(error) != self._fault:
                    self._fault = str(error)
                    logger.warning("the state file cannot be written, which is tried again: %s", error)
                if self._again is None or not self._again.is_alive() or self._again is threading.current_thread():
                    self._again = threading.Timer(_AGAIN_S, self._write)
                    self._again.daemon = True
                    self._again.start()


@contextmanager
def announced(config: Config, log: Path | None, notifier: Notifier) -> Iterator[State]:
    """The state file exists while the daemon does."""
    try:
        state = State(config, log, notifier)
    except OSError as error:
        fail(f"{error}; set XDG_STATE_HOME to a folder that can be written", ExitCode.FAILURE)
    try:
        yield state
    finally:
        state.stopping()
        state.forget()


def _url(config: Config) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"
