"""Systemctl: the manager that runs services, asked by its own command."""

import os
import shutil
import subprocess

from .unit import Scope


class ServiceError(RuntimeError):
    """The service cannot be installed, removed or looked at; the message says what would help."""


class Systemctl:
    """The manager of the system, or of this user. Raises ServiceError where there is none."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        if shutil.which("systemctl") is None:
            raise ServiceError(
                "there is no systemctl, so systemd does not run this machine; use isotherm serve --background"
            )
        try:
            self.run("show", "--property=Version")
        except ServiceError as error:
            remedy = (
                "log in as this user, not by su, or let its services run without a login: sudo loginctl enable-linger"
                if scope == "user"
                else "where another program starts services, have it run isotherm serve"
            )
            raise ServiceError(f"{error}; {remedy}") from error

    def run(self, *arguments: str) -> str:
        """What the command answers. Raises ServiceError with its words if it fails."""
        line = ["systemctl", *(["--user"] if self._scope == "user" else []), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
        if done.returncode:
            words = " ".join((done.stderr or done.stdout).split())
            raise ServiceError(f"{' '.join(line)} failed: {words or f'exit code {done.returncode}'}")
        return done.stdout

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit; of one that does not exist, too."""
        answer = self.run("show", unit, f"--property={','.join(properties)}")
        return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
