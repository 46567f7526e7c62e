"""Choice: the files of a repository that make one model; a repository may offer the same model in many formats."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from .names import LibraryError

SAFETENSORS = "safetensors"
MOST_FILES = 4096  # of a repository, and bytes of a name
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")
_FORMAT = re.compile(r"(?<![A-Za-z0-9])((?:IQ|TQ|Q)\d(?:_[A-Z0-9]+)*|BF16|F16|F32|MXFP4(?:_MOE)?)(?![A-Za-z0-9])", re.I)
_BESIDE = re.compile(r"mmproj|imatrix", re.I)  # are no model, or not one by itself
_FOLDER_FILES = re.compile(
    r"config\.json|generation_config\.json|chat_template\.jinja|tokenizer(_config)?\.json|special_tokens_map\.json|"
    r"model\.safetensors\.index\.json|[A-Za-z0-9._-]+\.safetensors|LICENSE(\.[a-z]+)?"
)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """path: within the repository. sha256: of what is large; blob: git's sha1 of what is not. One of them is known."""

    path: str
    size: int
    sha256: str = ""
    blob: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """label: what it is called after the colon. files: in order, the first is the one to be opened, or none of them in
    particular where it is a folder."""

    label: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def is_folder(self) -> bool:
        return self.label == SAFETENSORS


def choices_of(files: Sequence[RemoteFile]) -> list[Choice]:
    """What a repository offers, the largest first. Files that no model consists of are left out."""
    singles: dict[str, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        name = PurePosixPath(file.path).name
        if name.endswith(".gguf") and not _BESIDE.search(name) and _is_sane(file.path):
            singles.setdefault(_SHARD.sub("", file.path), []).append(file)
    found = {path: tuple(parts) for path, parts in singles.items() if _is_whole(parts)}
    choices = [Choice(label, found[path]) for path, label in _labels(found).items()]
    folder = tuple(file for file in files if _FOLDER_FILES.fullmatch(file.path))
    names = {file.path for file in folder}
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        choices.append(Choice(SAFETENSORS, folder))
    return sorted(choices, key=lambda choice: choice.size, reverse=True)


def pick(choices: Sequence[Choice], which: str, repo_id: str) -> list[Choice]:
    """Those that `which` names: a label, a format or a file. Raises LibraryError where none is."""
    if not choices:
        raise LibraryError(f"{repo_id} holds no .gguf file and no safetensors that could be served; name another one")
    wanted = which.lower()
    exact = [choice for choice in choices if wanted in (choice.label.lower(), choice.files[0].path.lower())]
    found = exact or [choice for choice in choices if not wanted or format_of(choice.files[0].path).lower() == wanted]
    if not found:
        labels = ", ".join(choice.label for choice in choices)
        raise LibraryError(f"{repo_id} has no {which!r}; it has {labels}")
    return found


def format_of(path: str) -> str:
    """The format that a file's name tells, empty if it tells none. Folders count, as in Q4_K_M/model-1.gguf."""
    found = _FORMAT.findall(path)
    return found[-1].upper() if found else ""


def _labels(paths: Iterable[str]) -> Mapping[str, str]:
    """By path: the format, or the file's name where formats are not told or not distinct."""
    formats = {path: format_of(path) for path in paths}
    counts = {name: list(formats.values()).count(name) for name in formats.values()}
    return {
        path: name if name and counts[name] == 1 else PurePosixPath(path).name.removesuffix(".gguf")
        for path, name in formats.items()
    }


def _is_whole(parts: Sequence[RemoteFile]) -> bool:
    found = [_SHARD.search(part.path) for part in parts]
    if len(parts) == 1 and found[0] is None:
        return True
    return [(int(m[1]), int(m[2])) for m in found if m] == [(n, len(parts)) for n in range(1, len(parts) + 1)]


def _is_sane(path: str) -> bool:
    parts = path.split("/")
    return len(path) < MOST_FILES and "\\" not in path and all(part not in ("", ".", "..") for part in parts)
