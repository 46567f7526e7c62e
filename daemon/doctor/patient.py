"""Patient: what is examined. All that can differ from machine to machine comes from here, so that any can be tried."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ...cpu_kernels.topology import Topology, read_topology
from ..config import Config
from ..machine import GROUPS, MEMBERSHIP, default_threads

_CONFIG = Config()


def _memlock() -> int:
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def torch_version() -> str | None:
    """As it was installed, with what it was built for; None if it was not."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A machine, and how a daemon would be started on it.

    api_key: by which a running daemon is asked. root: below it lie Linux's /proc, /sys and /etc. told_threads: None is
    what `serve` takes. cpus: that may be used; None is asked of the system. memlock: bytes, -1 without bound.
    torch: its version.
    """

    model: Path | None = None
    host: str = _CONFIG.host
    port: int = _CONFIG.port
    told_threads: int | None = None
    accelerators: tuple[str, ...] = ()
    plan: Path | None = None
    trace: Path | None = None
    api_key: str | None = None
    root: Path = Path("/")
    cpus: tuple[int, ...] | None = None
    memlock: int = field(default_factory=_memlock)
    torch: str | None = field(default_factory=torch_version)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @cached_property
    def topology(self) -> Topology:
        return read_topology(self.root, self.cpus)

    @cached_property
    def sensible_threads(self) -> int:
        return default_threads(self._below(GROUPS), self._below(MEMBERSHIP), self.topology)

    @property
    def threads(self) -> int:
        return self.told_threads or self.sensible_threads

    def text(self, path: str) -> str:
        """A file below the root, in one piece without its end of line; "" if there is none."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def paths(self, pattern: str) -> list[Path]:
        """What is there of a pattern below the root, by name."""
        return sorted(self.root.glob(pattern))

    def _below(self, path: Path) -> Path:
        return self.root / path.relative_to("/")
