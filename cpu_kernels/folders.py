"""Which folders files go to: a service's own, as systemd names them, else those of the user by the XDG rules."""

import os
from pathlib import Path


def service_folder(variable: str) -> Path | None:
    """What systemd gives by CacheDirectory= and its like, the first one if there are several; None outside a service.

    Only the process that systemd itself started counts: what another service runs inherits variables that mean others.
    """
    if os.environ.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return None
    first = os.environ.get(variable, "").split(":")[0]
    return Path(first) if os.path.isabs(first) else None


def user_folder(variable: str, fallback: str) -> Path:
    """Isotherm's folder below one of XDG's base folders; by its rules a relative one does not count."""
    value = os.environ.get(variable, "")
    return (Path(value) if os.path.isabs(value) else Path.home() / fallback) / "isotherm"


def cache_root() -> Path:
    """What can be built again."""
    return service_folder("CACHE_DIRECTORY") or user_folder("XDG_CACHE_HOME", ".cache")
