"""Condition: how an installed service is, as systemd knows it."""

import signal
from dataclasses import dataclass

from .systemctl import Systemctl
from .unit import SERVICE, SOCKET

_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "UnitFileState", "StateChangeTimestamp", "Result", "ExecMainCode",
    "ExecMainStatus", "ExecMainExitTimestamp", "MainPID", "NRestarts", "StatusText", "NeedDaemonReload", "LimitMEMLOCK",
)  # fmt: skip
_EXITED = "1"  # CLD_EXITED of ExecMainCode; others name a signal
_RESULTS = {
    "oom-kill": "the memory ran out",
    "watchdog": "no sign of life came from the engine",
    "timeout": "it took longer than its time limit",
    "start-limit-hit": "it failed too often in a row; systemctl reset-failed lets it start again",
    "protocol": "it ended before it was ready",
    "resources": "systemd could not set it up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """at_boot: whether it starts with the machine, or its socket does. since: when the state last changed.

    last_exit: how the process last ended, in words, None if it never did. words: what the daemon says of itself.
    listening: whether its socket waits for who connects. stale: whether systemd has yet to read what is on the disk.
    memlock: bytes that it may lock, or "infinity".
    """

    installed: bool
    active: bool
    state: str
    at_boot: bool
    since: str
    pid: int
    restarts: int
    last_exit: str | None
    words: str
    listening: bool
    stale: bool
    memlock: str


def condition(systemctl: Systemctl, causes: dict[int, str]) -> Condition:
    """causes: by exit code of the daemon. Raises ServiceError."""
    shown = systemctl.show(SERVICE, *_PROPERTIES)
    socket = systemctl.show(SOCKET, "UnitFileState", "ActiveState")
    return Condition(
        installed=shown["LoadState"] not in ("not-found", "masked"),
        active=shown["ActiveState"] == "active",
        state=f"{shown['ActiveState']} ({shown['SubState']})",
        at_boot="enabled" in (shown["UnitFileState"], socket["UnitFileState"]),
        since=shown["StateChangeTimestamp"],
        pid=int(shown["MainPID"] or 0),
        restarts=int(shown["NRestarts"] or 0),
        last_exit=_last_exit(shown, causes),
        words=shown["StatusText"],
        listening=socket["ActiveState"] == "active",
        stale=shown["NeedDaemonReload"] == "yes",
        memlock=shown["LimitMEMLOCK"],
    )


def _last_exit(shown: dict[str, str], causes: dict[int, str]) -> str | None:
    at, result, status = shown["ExecMainExitTimestamp"], shown["Result"], int(shown["ExecMainStatus"] or 0)
    if not at and result == "success":
        return None
    if shown["ExecMainCode"] == _EXITED:
        how = f"with {status}: {causes.get(status, 'ended as it was told to' if status in (0, 143) else 'unknown')}"
    else:
        how = f"by {_signal_name(status)}" if at else "before it ran"
    reason = f" ({_RESULTS.get(result, result)})" if result not in ("success", "exit-code", "signal") else ""
    return f"{how}{reason}{f', {at}' if at else ''}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
