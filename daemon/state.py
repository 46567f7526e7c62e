"""The state file of a running daemon: who serves a port, since when, and how far it has come."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

from .paths import state_file, state_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """One daemon. `started` is its process's start in seconds since the epoch: it tells the process from a later one
    with the same pid. log: None in the foreground. stage, done and total are the progress while loading.
    """

    pid: int
    started: float
    port: int
    url: str
    model: str
    log: str | None
    phase: Literal["loading", "ready"] = "loading"
    stage: str = ""
    done: int = 0
    total: int = 0

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        try:
            process = psutil.Process(self.pid)
            return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.started) < 1.0)
        except psutil.NoSuchProcess:
            return False


def own_start() -> float:
    """When this process started, in seconds since the epoch."""
    return float(psutil.Process().create_time())


def write_state(state: DaemonState) -> None:
    """Replace the state file of the daemon's port in one step."""
    path = state_file(state.port)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(json.dumps(asdict(state)))
    os.replace(part, path)


def remove_state(port: int) -> None:
    """Forget the daemon of a port."""
    state_file(port).unlink(missing_ok=True)


def read_state(port: int) -> DaemonState | None:
    """The live daemon of a port, None if there is none."""
    return _read(state_file(port))


def live_daemons() -> list[DaemonState]:
    """All daemons of this user that run, by port."""
    states = [_read(path) for path in state_folder().glob("serve-*.json")]
    return sorted((state for state in states if state is not None), key=lambda state: state.port)


def _read(path: Path) -> DaemonState | None:
    try:
        state = DaemonState(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):  # none, or the file of another version
        return None
    return state if state.alive else None
