"""Looks at installed units: what is written there, and what systemd makes of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ... import __version__
from ..cli.output import NO_RESTART, ExitCode
from ..service.condition import Condition, condition
from ..service.systemctl import ServiceError, Systemctl
from ..service.unit import SERVICE, SOCKET, Scope, renewed
from ..service.unit_file import UnitFile
from .finding import Finding, advice, fault, good
from .patient import Patient

_UNITS: dict[Scope, str] = {
    "system": "etc/systemd/system/isotherm.service",
    "user": ".config/systemd/user/isotherm.service",
}


@dataclass(frozen=True, slots=True)
class _Installed:
    """A unit, with the commands that mend it."""

    scope: Scope
    file: UnitFile

    @property
    def install(self) -> str:
        return "isotherm service install --user" if self.scope == "user" else "sudo isotherm service install"

    @property
    def systemctl(self) -> str:
        return "systemctl --user" if self.scope == "user" else "sudo systemctl"

    @property
    def journal(self) -> str:
        return f"journalctl {'--user ' if self.scope == 'user' else ''}--unit isotherm"

    @property
    def program(self) -> str:
        start = re.search(r'^ExecStart=[-@:+!]*(?:"([^"]+)"|(\S+))', self.file.body(), re.M)
        return "" if start is None else start[1] or start[2]


def unit(patient: Patient) -> Iterator[Finding]:
    """Whether each installed unit is what `install` would write, and whether it runs and goes on running."""
    homes = {"system": patient.root, "user": Path(patient.environ.get("HOME", "/nowhere"))}
    for scope, name in _UNITS.items():
        installed = _Installed(scope, UnitFile(homes[scope] / name))
        if installed.file.verdict() == "absent":
            continue
        found = [*_of_file(installed), *_of_user(patient, installed), *_of_systemd(patient, installed)]
        yield from found or [good("unit", str(installed.file.path))]


def _of_file(unit: _Installed) -> Iterator[Finding]:
    path, program = unit.file.path, unit.program
    if not Path(program).is_file():
        told = f"starts {program}, which is gone" if program else "names no program"
        yield fault("unit", f"{path} {told}", unit.install)
    if unit.file.verdict() != "ours":
        return  # whoever wrote it knows what it is to say
    text = unit.file.body()
    if text != renewed(text, unit.scope, {code.value: code.cause for code in NO_RESTART}):
        told = f"{path} is of version {unit.file.version()}; {__version__} would write another"
        yield advice("unit", told, f"{unit.install}, with what it was told after --")


def _of_user(patient: Patient, unit: _Installed) -> Iterator[Finding]:
    user = patient.environ.get("USER", "")
    if unit.scope == "user" and not (user and (patient.root / "var/lib/systemd/linger" / user).exists()):
        told = "a service of a user ends with the last login"
        yield advice("unit", told, f"sudo loginctl enable-linger {user or 'USER'}")


def _of_systemd(patient: Patient, unit: _Installed) -> Iterator[Finding]:
    try:
        now = condition(Systemctl(unit.scope), {code.value: code.cause for code in ExitCode})
    except ServiceError as error:
        yield advice("unit", f"systemd cannot be asked of {unit.file.path}: {error}", "ask where systemd runs")
        return
    if now.stale or not now.installed:
        told = f"{unit.file.path} or a drop-in has changed since systemd read it"
        yield fault("unit", told, f"{unit.systemctl} daemon-reload && {unit.systemctl} restart isotherm")
    if now.state.startswith("failed"):
        yield _failure(unit, now)
    elif now.restarts:
        told = f"systemd has started it again {now.restarts} times, the last exit: {now.last_exit or 'not known'}"
        grade = advice if now.active else fault
        yield grade("unit", told, f"{unit.journal} says why")
    if not now.at_boot and now.installed:
        told = "it does not start with the machine" if unit.scope == "system" else "it does not start with a login"
        first = SOCKET if SOCKET in unit.file.body() else SERVICE
        yield advice("unit", told, f"{unit.systemctl} enable {first}")
    yield from _locked_memory(patient, unit, now)


def _failure(unit: _Installed, now: Condition) -> Finding:
    waits = "; its socket goes on listening, and who connects gets no answer" if now.listening else ""
    again = f"mend what {unit.journal} names, then {unit.systemctl} reset-failed isotherm"
    return fault(
        "unit", f"the service has failed, {now.last_exit}{waits}", f"{again} && {unit.systemctl} start isotherm"
    )


def _locked_memory(patient: Patient, unit: _Installed, now: Condition) -> Iterator[Finding]:
    """Cards are fed from locked memory. What a process really got may be less than its unit asks for."""
    if not (patient.accelerators or "--accelerator" in unit.file.body()):
        return
    limits = re.search(r"^Max locked memory +(\S+)", patient.text(f"proc/{now.pid}/limits") if now.pid else "", re.M)
    limit = limits[1] if limits else now.memlock
    if limit.isdecimal():
        where = "in a drop-in of user@.service" if unit.scope == "user" else f"by {unit.systemctl} edit isotherm"
        told = f"the service may lock only {int(limit) // 1024} KiB, and cards are fed from locked memory"
        yield fault("unit", told, f"set LimitMEMLOCK=infinity {where}, and restart it")


LOOKS = (unit,)
