"""ProcessStart: tells a process from a later one with the same pid, however the clock is set meanwhile."""

import os
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STARTTIME = 19  # of the fields after the program's name, see proc_pid_stat(5)


def process_start(pid: int | None = None) -> str | None:
    """The boot and the clock tick after it at which a process started; of this one without a pid.

    None if there is no such process any more, or nothing but its exit code is left of it.
    """
    try:
        stat = Path(f"/proc/{pid or os.getpid()}/stat").read_bytes()
        boot = _BOOT.read_text().strip()
    except (OSError, ValueError):
        return None
    fields = stat.rpartition(b")")[2].split()  # a program's name may hold spaces and brackets
    return None if fields[0] in (b"Z", b"X") else f"{boot}:{int(fields[_STARTTIME])}"
