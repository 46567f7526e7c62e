"""The state file of a running daemon: who serves a port, since when, and how far it has come."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from .paths import state_file, state_folder
from .process_start import process_start


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """One daemon. started: its process's, see `process_start`. log: None in the foreground. drain_s: what open
    requests get when it ends. stage, done and total are the progress while loading.
    """

    pid: int
    started: str
    port: int
    url: str
    model: str
    log: str | None
    drain_s: float
    phase: Literal["loading", "ready"] = "loading"
    stage: str = ""
    done: int = 0
    total: int = 0

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return process_start(self.pid) == self.started


def write_state(state: DaemonState) -> None:
    """Replace the state file of the daemon's port in one step."""
    path = state_file(state.port)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(asdict(state)))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def remove_state(port: int) -> None:
    """Forget this process as the daemon of a port; a later one's file stays."""
    state = read_state(port)
    if state is None or state.pid == os.getpid():
        state_file(port).unlink(missing_ok=True)


def read_state(port: int) -> DaemonState | None:
    """The live daemon of a port, None if there is none."""
    return _read(state_file(port))


def live_daemons() -> list[DaemonState]:
    """All daemons of this user that run, by port."""
    states = [_read(path) for path in state_folder().glob("serve-*.json")]
    return sorted((state for state in states if state is not None), key=lambda state: state.port)


def remove_stale_states() -> None:
    """Forget daemons that were killed, and what they left half written. Raises OSError.

    A file that is no state of this version stays: its daemon may run.
    """
    for path in state_folder().glob("serve-*.json"):
        try:
            alive = _parse(path.read_bytes()).alive
        except (OSError, ValueError, TypeError, RecursionError):
            continue
        if not alive:
            path.unlink(missing_ok=True)
    for part in state_folder().glob("serve-*.json.*"):
        pid = part.suffix[1:]
        if pid.isdecimal() and process_start(int(pid)) is None:
            part.unlink(missing_ok=True)


def _read(path: Path) -> DaemonState | None:
    try:
        state = _parse(path.read_bytes())
    except (OSError, ValueError, TypeError, RecursionError):  # none, not a file, or not one of this version
        return None
    return state if state.alive else None


def _parse(text: bytes) -> DaemonState:
    """Raises ValueError, TypeError or RecursionError for what is no state: other programs may write there too."""
    state = DaemonState(**json.loads(text))
    numbers = (state.pid, state.port, state.done, state.total)
    texts = (state.started, state.url, state.model, state.stage)
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in numbers) or state.pid == 0:
        raise ValueError(f"pid, port or progress is no number: {state}")
    if not all(isinstance(text, str) for text in texts) or type(state.drain_s) not in (int, float):
        raise ValueError(f"a field has the wrong type: {state}")
    return state
