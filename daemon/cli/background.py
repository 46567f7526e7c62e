"""Running the daemon in the background: detach, and wait in the terminal until it is ready."""

import os
import signal
import time
from pathlib import Path

import typer

from ..state import DaemonState, live_daemons, read_state
from .output import ExitCode, err, fail, out
from .program import program
from .progress import progress_bars

_LAST_LINES = 12
_USUAL_CAUSES = {
    signal.SIGBUS: "a file was cut or its disk failed while it was read",
    signal.SIGKILL: "most often because the memory ran out",
}


def detach(log: Path) -> int | None:
    """Fork. The child, which gets None, belongs to no terminal and writes to `log`; the parent gets its pid.

    To be called before any thread is started.
    """
    try:
        file = open_log(log)
    except OSError as error:
        fail(f"{error}; set XDG_STATE_HOME to a folder that can be written", ExitCode.FAILURE)
    pid = os.fork()
    if pid:
        os.close(file)
        return pid
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    err.no_color = True  # the console was made for the terminal
    return None


def open_log(log: Path) -> int:
    """A file descriptor of an empty log. The log of the run before is kept beside it, with .1 at its end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        os.replace(log, f"{log}.1")
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def wait_until_ready(pid: int, port: int, log: Path) -> None:
    """Show the child's progress until it serves, then say where. Exits with the child's code if it ends before."""
    try:
        with progress_bars() as report:
            while (state := read_state(port)) is None or state.pid != pid or state.phase == "loading":
                _check_child(pid, log)
                if state is not None and state.stage:
                    report(state.stage, state.done, state.total)
                time.sleep(0.1)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        fail("stopped while loading", ExitCode.FAILURE)
    _announce(state)


def _check_child(pid: int, log: Path) -> None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    code = os.waitstatus_to_exitcode(status)
    if code in list(ExitCode) and lines and lines[-1].startswith("isotherm: "):  # it has told why
        fail(f"{lines[-1].removeprefix('isotherm: ')} (log: {log})", ExitCode(code))
    for line in lines:
        err.print(line, markup=False, highlight=False, soft_wrap=True)
    reason = f" ({_signal_reason(-code)})" if code < 0 else ""
    words = f"isotherm: the daemon did not start{reason}; its log is {log}"
    err.print(words, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(128 - code if code < 0 else code or ExitCode.FAILURE)


def _signal_reason(number: int) -> str:
    sig = signal.Signals(number)
    return f"{sig.name}: {_USUAL_CAUSES[sig]}" if sig in _USUAL_CAUSES else f"ended by {sig.name}"


def _announce(state: DaemonState) -> None:
    _tell(f"{state.model} is served at {state.url}/v1")
    for line in hints(state.port, state.url):
        _tell(line)
    _tell(f"process {state.pid}, log {state.log}")


def hints(port: int, url: str) -> tuple[str, ...]:
    """What one can do with a daemon that is ready, in lines."""
    where = f" --port {port}" if len(live_daemons()) > 1 else ""
    commands = (("talk", "chat"), ("look", "status"), ("end", "stop"))
    lines = [f"  {what:4}  {program()} {command}{where}" for what, command in commands]
    return (*lines, f"  see   {url}/ui")


def _tell(words: str) -> None:
    out.print(words, markup=False, highlight=False, soft_wrap=True)
