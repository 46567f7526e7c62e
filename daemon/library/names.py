"""Names of models: OWNER/REPO, and after a colon which of its files."""

import re
from dataclasses import dataclass

from ...experts.errors import ModelError

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class LibraryError(ModelError):
    """A model cannot be pulled, found or removed; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """owner: empty where it was left out. which: a format or a file's name, empty for any."""

    owner: str
    repo: str
    which: str = ""

    @property
    def repo_id(self) -> str:
        return f"{self.owner}/{self.repo}"


def parse_name(text: str) -> Wanted:
    """[OWNER/]REPO[:WHICH]. Raises LibraryError for what can be no name, such as a path."""
    repo_id, _, which = text.removeprefix("hf.co/").removeprefix("https://huggingface.co/").partition(":")
    owner, _, repo = repo_id.rpartition("/")
    parts = [repo, *([owner] if owner else []), *([which.rpartition("/")[2]] if which else [])]
    if not all(_PART.fullmatch(part) and ".." not in part for part in parts) or ".." in which:
        raise LibraryError(f"{text!r} is no name of a model; one is OWNER/REPO or OWNER/REPO:FORMAT")
    return Wanted(owner, repo, which)
