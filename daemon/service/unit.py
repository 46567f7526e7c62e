"""The text of the units: templates that lie beside this file, with a few fields filled in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Scope = Literal["system", "user"]

SERVICE, SOCKET = "isotherm.service", "isotherm.socket"
_FOLDER = Path(__file__).parent
_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)
_OTHER_SCOPE = {"system": "user|", "user": "system|"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceUnit:
    """What a service unit has of its own.

    command: the program and its arguments. run_as: the user of a system service; None is a user that systemd makes up.
    readable: what the service is to see of folders that are hidden from it. no_restart: by exit code, the cause that
    another start does not mend. socket: whether a socket unit holds the address.
    """

    scope: Scope
    command: Sequence[str]
    no_restart: dict[int, str]
    run_as: str | None = None
    readable: Sequence[Path] = ()
    socket: bool = False

    def text(self) -> str:
        """The unit file."""
        fields = {
            "EXEC_START": " ".join(word(argument) for argument in self.command),
            "SOCKET": f"Requires={SOCKET}\nAfter={SOCKET}" if self.socket else None,
            **_no_restart(self.no_restart),
            "IDENTITY": f"User={self.run_as}" if self.run_as else "DynamicUser=yes",
            "BINDS": "\n".join(f"BindReadOnlyPaths={_bound(path)}" for path in self.readable) or None,
        }
        return _filled(self.scope, fields)


def renewed(text: str, scope: Scope, no_restart: dict[int, str]) -> str:
    """What `install` would write today in the place of a unit that it wrote, told the same."""

    def lines(pattern: str) -> str | None:
        return "\n".join(re.findall(rf"^(?:{pattern})$", text, re.M)) or None

    fields = {
        "EXEC_START": (lines("ExecStart=.*") or "").removeprefix("ExecStart="),
        "SOCKET": lines(f"(?:Requires|After)={re.escape(SOCKET)}"),
        "IDENTITY": lines("User=.*|DynamicUser=yes"),
        "BINDS": lines("BindReadOnlyPaths=.*"),
    }
    return _filled(scope, fields | _no_restart(no_restart))


def socket_text(address: str) -> str:
    """The unit file of a socket. address: as ListenStream= takes it, such as 127.0.0.1:8440 or 8440."""
    return (_FOLDER / SOCKET).read_text(encoding="utf-8").replace("@ADDRESS@", address)


def word(argument: str) -> str:
    """An argument as ExecStart= reads it back: specifiers and variables mean themselves."""
    plain = argument.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(argument):
        return argument
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _bound(path: Path) -> str:
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace(":", "\\:").replace('"', '\\"')
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def _no_restart(causes: dict[int, str]) -> dict[str, str | None]:
    words = "; ".join(f"{code}, {cause}" for code, cause in causes.items())
    return {"NO_RESTART": " ".join(map(str, causes)), "NO_RESTART_CAUSES": words}


def _filled(scope: Scope, fields: dict[str, str | None]) -> str:
    lines = (_FOLDER / SERVICE).read_text(encoding="utf-8").splitlines()[1:]
    kept = (line for line in lines if not line.startswith(_OTHER_SCOPE[scope]))
    filled = (_fill(line.removeprefix(f"{scope}|"), fields) for line in kept)
    return "\n".join(line for line in filled if line is not None) + "\n"


def _fill(line: str, fields: dict[str, str | None]) -> str | None:
    """A line with its fields; None where one of them says that there is to be no such line."""
    for name, value in fields.items():
        if f"@{name}@" in line:
            if value is None:
                return None
            line = line.replace(f"@{name}@", value)
    return line
