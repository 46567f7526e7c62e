"""Shelf: the folder where pulled models stand, each with a note of what it is and that all of it is there."""

import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ...placement.files import lock_of, replacing
from ..state import live_daemons
from .choices import SAFETENSORS, Choice
from .names import LibraryError, Wanted, parse_name

logger = logging.getLogger(__name__)

NOTE = "isotherm.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One model. revision: of the repository it is from. files: names within its folder, the first is opened."""

    repo_id: str
    label: str
    revision: str
    files: tuple[str, ...]
    size: int

    @property
    def name(self) -> str:
        return f"{self.repo_id}:{self.label}"


class Shelf:
    """folder: OWNER/REPO/LABEL below it is a model. A folder without a note is one that is still being pulled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, repo_id: str, label: str) -> Path:
        """Where a model stands, or will."""
        return self.folder / repo_id / label

    def path(self, kept: Kept) -> Path:
        """What is opened: a file, or a folder of safetensors."""
        place = self.place(kept.repo_id, kept.label)
        return place if kept.label == SAFETENSORS else place / kept.files[0]

    def all(self) -> list[Kept]:
        """By name."""
        notes = (self._read(path) for path in self.folder.glob(f"*/*/*/{NOTE}"))
        return sorted((note for note in notes if note is not None), key=lambda kept: kept.name)

    def find(self, text: str) -> Kept | None:
        """The model of a name, of which all but the repository may be left out; None if there is none.

        Raises LibraryError where several have it.
        """
        try:
            wanted = parse_name(text)
        except LibraryError:
            return None
        found = [kept for kept in self.all() if _is(kept, wanted)]
        if len(found) > 1:
            raise LibraryError(f"{text} may be any of {', '.join(kept.name for kept in found)}; name one of them")
        return found[0] if found else None

    def note(self, repo_id: str, revision: str, choice: Choice) -> Kept:
        """Say that all of a model is there."""
        kept = Kept(
            repo_id=repo_id,
            label=choice.label,
            revision=revision,
            files=tuple(file.path for file in choice.files),
            size=choice.size,
        )
        with replacing(self.place(repo_id, choice.label) / NOTE) as file:
            file.write(json.dumps(asdict(kept), indent=2).encode())
        return kept

    def remove(self, kept: Kept) -> None:
        """Remove its files. Raises LibraryError while a daemon reads them."""
        place = self.place(kept.repo_id, kept.label)
        for daemon in live_daemons():
            if _reads(daemon.pid, place):
                raise LibraryError(f"{kept.name} is served by process {daemon.pid}; isotherm stop --port {daemon.port}")
        (place / NOTE).unlink(missing_ok=True)  # first, so that what is left of it is never taken for whole
        shutil.rmtree(place)
        lock_of(place).unlink(missing_ok=True)
        for folder in (place.parent, place.parent.parent):
            with suppress(OSError):  # others stand there
                folder.rmdir()
        logger.info("removed %s", place)

    def _read(self, path: Path) -> Kept | None:
        """None for a note that is not one, or of which a file is missing."""
        try:
            value = json.loads(path.read_bytes())
            kept = Kept(**value | {"files": tuple(map(str, value["files"]))})
            place = self.place(kept.repo_id, kept.label)
            whole = kept.files and place == path.parent and all((path.parent / name).is_file() for name in kept.files)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return kept if whole else None


def _is(kept: Kept, wanted: Wanted) -> bool:
    owner, _, repo = kept.repo_id.partition("/")
    return (
        repo.lower() == wanted.repo.lower()
        and wanted.owner.lower() in ("", owner.lower())
        and wanted.which.lower() in ("", kept.label.lower())
    )


def _reads(pid: int, place: Path) -> bool:
    try:
        maps: Sequence[str] = [each.path for each in psutil.Process(pid).memory_maps()]
    except psutil.Error:
        return False
    return any(Path(path).is_relative_to(place.resolve()) for path in maps if path.startswith("/"))
