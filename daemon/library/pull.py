"""Pulling a model: what is to come is looked at first, then its files come, are checked, and stand on the shelf."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...experts.progress import Progress
from ...placement.files import lock_of, locked
from ..memory import GIB
from .choices import Choice, choices_of, pick
from .fit import Verdict, best, verdicts
from .hub import Hub, Listing
from .names import LibraryError, parse_name
from .shelf import Kept, Shelf

_SPARE = 2 * GIB  # of a disk, or a twentieth of it, stays free
_AT_ONCE = 1 << 24  # bytes between two words of progress


@dataclass(frozen=True, slots=True)
class Offer:
    """What would be pulled. verdict: None where it was asked for by name, whether it fits or not."""

    listing: Listing
    choice: Choice
    verdict: Verdict | None = None


def offer(text: str, hub: Hub, progress: Progress) -> Offer:
    """What a name stands for: what it says, else the best that fits. Raises LibraryError."""
    wanted = parse_name(text)
    if not wanted.owner:
        raise LibraryError(f"{text!r} does not say whose model it is; one is OWNER/REPO or OWNER/REPO:FORMAT")
    listing = hub.listing(wanted.repo_id)
    found = pick(choices_of(listing.files), wanted.which, listing.repo_id)
    if len(found) == 1 and wanted.which:
        return Offer(listing, found[0])
    verdict = best(verdicts(hub, listing, found, progress), listing.repo_id)
    return Offer(listing, verdict.choice, verdict)


def pull(offered: Offer, shelf: Shelf, hub: Hub, progress: Progress, waiting: Callable[[], object]) -> Kept:
    """Fetch what was offered. What an earlier pull has left is gone on with; another one's end is waited for.

    Raises LibraryError, and OSError where the disk does not take it.
    """
    listing, choice = offered.listing, offered.choice
    place = shelf.place(listing.repo_id, choice.label)
    with locked(lock_of(place), waiting):
        place.mkdir(parents=True, exist_ok=True)
        _check_room(choice, place)
        told, total = 0, choice.size
        for file in choice.files:
            base = told

            def report(more: int, name: str = file.path) -> None:
                nonlocal told
                before, told = told, min(told + more, total)
                if told // _AT_ONCE > before // _AT_ONCE:
                    progress(f"pulling {name}", told, total)

            progress(f"pulling {file.path}", told, total)
            hub.fetch(listing, file, place, report)
            told = base + file.size
        progress(f"pulling {choice.files[-1].path}", total, total)
        return shelf.note(listing.repo_id, listing.revision, choice)


def _check_room(choice: Choice, place: Path) -> None:
    here = sum(path.stat().st_blocks * 512 for path in place.rglob("*") if path.is_file())
    disk = shutil.disk_usage(place)
    lacking = max(choice.size - here, 0) + min(disk.total // 20, _SPARE) - disk.free
    if lacking > 0:
        raise LibraryError(
            f"{choice.label} has {choice.size / GIB:.1f} GiB, and the disk of {place} lacks {lacking / GIB:.1f} GiB "
            "for it; free some, or set XDG_DATA_HOME to a folder on another disk"
        )
