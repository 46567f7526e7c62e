"""Where Isotherm keeps files of the user, by the XDG base directory rules."""

import os
from pathlib import Path


def _base(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    return Path(value) if os.path.isabs(value) else Path.home() / fallback  # the rules say: ignore a relative one


def cache_folder() -> Path:
    """What can be built again: the demo model, packed weights."""
    return _base("XDG_CACHE_HOME", ".cache") / "isotherm"


def packed_folder() -> Path:
    """The packed weights of models that were served."""
    return cache_folder() / "packed"


def models_folder() -> Path:
    """Models that were pulled."""
    return _base("XDG_DATA_HOME", ".local/share") / "isotherm" / "models"


def state_folder() -> Path:
    """Which daemons run, their logs, and where their traffic was routed."""
    return _base("XDG_STATE_HOME", ".local/state") / "isotherm"


def state_file(port: int) -> Path:
    """The state of the daemon on a port."""
    return state_folder() / f"serve-{port}.json"


def log_file(port: int) -> Path:
    """The log of the background daemon on a port."""
    return state_folder() / f"serve-{port}.log"


def routing_folder() -> Path:
    """Which experts the traffic of models went to."""
    return state_folder() / "routing"


def routing_file(fingerprint: str) -> Path:
    """The trace of a model."""
    return routing_folder() / f"{fingerprint[:32]}.npz"


def placement_file(fingerprint: str) -> Path:
    """Where the experts of a model came to lie on accelerators."""
    return state_folder() / "placement" / f"{fingerprint[:32]}.json"


def hardware_file(threads: int) -> Path:
    """What was measured of this machine with so many threads."""
    return state_folder() / "hardware" / f"threads-{threads}.json"
