"""Where Isotherm keeps files: those of a user by the XDG base directory rules, a service's where systemd says."""

from pathlib import Path

from ..cpu_kernels.folders import cache_root, service_folder, user_folder


def cache_folder() -> Path:
    """What can be built again: the demo model, packed weights, compiled kernels."""
    return cache_root()


def packed_folder() -> Path:
    """The packed weights of models that were served."""
    return cache_folder() / "packed"


def models_folder() -> Path:
    """Models that were pulled."""
    return (service_folder("STATE_DIRECTORY") or user_folder("XDG_DATA_HOME", ".local/share")) / "models"


def state_folder() -> Path:
    """Which daemons run, their logs, and where their traffic was routed."""
    return service_folder("STATE_DIRECTORY") or user_folder("XDG_STATE_HOME", ".local/state")


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
