"""A systemctl that notes what it is asked and answers from a file, first on the PATH."""

from pathlib import Path

import pytest

SCRIPT = """#!/bin/sh
echo "$*" >> "{folder}/calls"
case "$*" in
  *"show --property=Version"*) {version} ;;
  *"show isotherm.socket "*) cat "{folder}/shown.socket" 2>/dev/null || cat "{folder}/shown" ;;
  *show*) cat "{folder}/shown" ;;
esac
"""


class FakeSystemd:
    """calls: what was asked since the last look, without questions. shown: the properties that every unit has."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, version: str = "echo Version=252") -> None:
        self._folder = folder
        folder.mkdir()
        script = folder / "systemctl"
        script.write_text(SCRIPT.format(folder=folder, version=version))
        script.chmod(0o755)
        self.show()
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def show(self, **properties: str) -> None:
        lines = {"ActiveState": "active", "StatusText": "serving m", "NRestarts": "0"} | properties
        (self._folder / "shown").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def show_of(self, unit: str, **properties: str) -> None:
        """Of the socket alone."""
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self._folder / f"shown.{unit.rpartition('.')[2]}").write_text(lines)

    def calls(self) -> list[str]:
        path = self._folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [line for line in lines if "show" not in line.split()]
