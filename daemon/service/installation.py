"""Installation: the units of one scope on this machine. Nothing else is written, and nothing else is removed."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..paths import cache_folder, state_folder
from .systemctl import ServiceError, Systemctl
from .unit import SERVICE, SOCKET, Scope
from .unit_file import UnitFile

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Installation:
    """root: "/" but for tests."""

    scope: Scope
    root: Path = Path("/")

    @property
    def folder(self) -> Path:
        """Where systemd looks for units that the administrator, or the user, has made."""
        if self.scope == "system":
            return self.root / "etc/systemd/system"
        base = os.environ.get("XDG_CONFIG_HOME", "")
        return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "systemd/user"

    def file(self, unit: str) -> UnitFile:
        return UnitFile(self.folder / unit)

    @property
    def config(self) -> UnitFile | None:
        """The configuration file of a service of the system; a user has his own."""
        return UnitFile(self.root / "etc/isotherm/config.toml") if self.scope == "system" else None

    def installed(self) -> list[str]:
        """Names of the units that are there."""
        return [unit for unit in (SERVICE, SOCKET) if self.file(unit).verdict() != "absent"]

    def check_rights(self) -> None:
        """Raise ServiceError if this user may not change the system's units."""
        if self.scope == "system" and not os.access(self._existing(self.folder), os.W_OK):
            raise ServiceError(
                f"{self.folder} cannot be written; run this by sudo, or install a service of your own by --user"
            )

    def install(self, texts: dict[str, str], sample: str, *, start: bool, force: bool) -> list[Path]:
        """Write the units and have them start, now and with the machine; the files that changed.

        An earlier unit that is not among `texts` goes. sample: a configuration file to begin with, where there is none.
        Raises ServiceError, before anything is written if it can.
        """
        self.check_rights()
        systemctl = Systemctl(self.scope)
        for unit in (SERVICE, SOCKET):
            self.file(unit).check(force)
        unwanted = [unit for unit in self.installed() if unit not in texts]
        if unwanted:
            self._drop(systemctl, unwanted)
        changed = [self.file(unit).path for unit, text in texts.items() if self.file(unit).write(text)]
        if self.config is not None and self.config.verdict() in ("absent", "ours") and self.config.write(sample):
            changed.append(self.config.path)
        systemctl.run("daemon-reload")
        self._verify(list(texts))
        # With a socket, who connects first has the service started.
        first = SOCKET if SOCKET in texts else SERVICE
        systemctl.run("enable", first)
        if first == SOCKET:
            systemctl.run("disable", SERVICE)
        if start:
            if first == SOCKET:
                systemctl.run("stop", SERVICE)  # the address is the socket's
            systemctl.run("restart", "--no-block", first)
        return changed

    def uninstall(self, *, purge: bool, force: bool) -> list[Path]:
        """Stop and remove the units; the files that went. purge: what the service has kept goes, too,
        also after an earlier removal."""
        units = self.installed()
        if not units and not (purge and self.kept()):
            raise ServiceError(f"no service is installed in {self.folder}")
        self.check_rights()
        for unit in units:
            self.file(unit).check(force)
        systemctl = Systemctl(self.scope)
        gone = self._drop(systemctl, units) if units else []
        if self.config is not None:
            if self.config.verdict() == "ours":
                self.config.path.unlink()
                gone.append(self.config.path)
            with suppress(OSError):  # what others put there stays
                self.config.path.parent.rmdir()
        for path in self.kept() if purge else ():
            if path.is_symlink():
                path.unlink()
            else:
                shutil.rmtree(path)
            gone.append(path)
        return gone

    def left(self) -> list[Path]:
        """What `uninstall` does not take: changes that were made beside the units, and a changed configuration."""
        paths = [self.folder / f"{unit}.d" for unit in (SERVICE, SOCKET)]
        return [path for path in paths + ([self.config.path] if self.config else []) if path.exists()]

    def kept(self) -> list[Path]:
        """What the service keeps. A made up user's lies below private/, where a link leads."""
        if self.scope == "user":
            return [path for path in (cache_folder(), state_folder()) if path.exists()]
        bases = (self.root / "var/lib", self.root / "var/cache")
        paths = (path for base in bases for path in (base / "isotherm", base / "private/isotherm"))
        return [path for path in paths if path.is_symlink() or path.exists()]

    def _drop(self, systemctl: Systemctl, units: Sequence[str]) -> list[Path]:
        systemctl.run("disable", "--now", *units)
        paths = [self.file(unit).path for unit in units]
        for path in paths:
            path.unlink(missing_ok=True)
        systemctl.run("daemon-reload")
        # A unit that had failed is remembered until this; of others there is nothing to forget.
        subprocess.run(["systemctl", *self._flags(), "reset-failed", *units], capture_output=True)
        return paths

    def _verify(self, units: Sequence[str]) -> None:
        """Have systemd read what was written. Raises ServiceError with what it does not like."""
        if shutil.which("systemd-analyze") is None:
            return
        paths = [str(self.file(unit).path) for unit in units]
        line = ["systemd-analyze", *self._flags(), "verify", "--man=no", "--recursive-errors=no", *paths]
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode:
            raise ServiceError(f"systemd refuses the unit: {' '.join(done.stderr.split())}")

    def _flags(self) -> list[str]:
        return ["--user"] if self.scope == "user" else []

    @staticmethod
    def _existing(path: Path) -> Path:
        return next(each for each in (path, *path.parents) if each.exists())


def wait_until_active(systemctl: Systemctl, tell: Callable[[str], None]) -> bool:
    """Tell what the starting service says of itself until it serves (True) or has failed (False)."""
    told = ""
    while True:
        state = systemctl.show(SERVICE, "ActiveState", "StatusText", "Result", "NRestarts")
        if state.get("StatusText", "") not in ("", told):
            told = state["StatusText"]
            tell(told)
        if state["ActiveState"] == "active":
            return True
        if state["ActiveState"] in ("failed", "inactive") or int(state.get("NRestarts") or 0) > 0:
            return False
        time.sleep(_LOOK_EVERY_S)
