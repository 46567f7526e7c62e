"""UnitFile: a file that `install` wrote, which can be told from another's and from one that was changed since."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ... import __version__
from .systemctl import ServiceError

Verdict = Literal["absent", "ours", "changed", "foreign"]
_MARK = re.compile(r"# Written by isotherm service install, version (\S+), sha256 ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class UnitFile:
    path: Path

    def verdict(self) -> Verdict:
        """Whose it is, as its first line and the digest in it say."""
        text = self._text()
        if text is None:
            return "absent"
        mark = _MARK.match(text)
        if mark is None:
            return "foreign"
        return "ours" if _digest(text[mark.end() :]) == mark[2] else "changed"

    def version(self) -> str | None:
        """The version that wrote it."""
        mark = _MARK.match(self._text() or "")
        return None if mark is None else mark[1]

    def body(self) -> str:
        """The text without the line that says who wrote it."""
        text = self._text() or ""
        mark = _MARK.match(text)
        return text if mark is None else text[mark.end() :]

    def check(self, force: bool) -> None:
        """Raise ServiceError if it may not be replaced or removed. force: it may even if it was changed by hand."""
        verdict = self.verdict()
        if verdict == "foreign":
            raise ServiceError(f"{self.path} was not written by isotherm service install; move it away yourself")
        if verdict == "changed" and not force:
            raise ServiceError(
                f"{self.path} was changed by hand; keep the changes in a drop-in (systemctl edit isotherm), "
                "and give this one up by --force"
            )

    def write(self, text: str) -> bool:
        """Replace it in one step; whether that changed anything. Raises OSError."""
        whole = f"# Written by isotherm service install, version {__version__}, sha256 {_digest(text)}\n{text}"
        if self._text() == whole:
            return False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            part.write_text(whole, encoding="utf-8")
            part.chmod(0o644)
            os.replace(part, self.path)
        finally:
            part.unlink(missing_ok=True)
        return True

    def _text(self) -> str | None:
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
