"""Hub: what is asked of a hub of models, by its client library, with its failures in our words."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, but not marked so
from tqdm.auto import tqdm

from .choices import MOST_FILES, RemoteFile
from .names import LibraryError

logger = logging.getLogger(__name__)

Told = Callable[[int], None]  # of bytes that came
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at a revision, which is a commit."""

    repo_id: str
    revision: str
    files: tuple[RemoteFile, ...]


class Hub:
    """Where HF_ENDPOINT says, with the token of HF_TOKEN or of the hub's login. offline: nothing is asked of it."""

    def __init__(self, *, offline: bool = False) -> None:
        self.offline = offline or constants.HF_HUB_OFFLINE

    def listing(self, repo_id: str, revision: str | None = None) -> Listing:
        """Its files, with sizes and checksums. Raises LibraryError."""
        if self.offline:
            raise LibraryError(
                f"{repo_id} is not on this machine, and the hub is not asked (HF_HUB_OFFLINE or --offline); pull it "
                "while there is a network"
            )
        with _in_our_words(repo_id):
            info = HfApi().model_info(repo_id, revision=revision, files_metadata=True, timeout=30)
        siblings = info.siblings or []
        if len(siblings) > MOST_FILES:
            raise LibraryError(f"{repo_id} has {len(siblings)} files; at most {MOST_FILES} are looked at")
        files = tuple(_file(each) for each in siblings if each.size is not None and each.size >= 0)
        return Listing(info.id or repo_id, info.sha or "main", files)

    def fetch(self, listing: Listing, file: RemoteFile, folder: Path, told: Told) -> Path:
        """The file below `folder`, whole and right. What is there of it already is not fetched again.

        Raises LibraryError, OSError where it cannot be written.
        """
        target = folder / file.path
        if not (target.is_file() and target.stat().st_size == file.size):
            here = try_to_load_from_cache(listing.repo_id, file.path, revision=listing.revision)
            if isinstance(here, str) and Path(here).stat().st_size == file.size:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                os.symlink(Path(here).resolve(), target)
                logger.info("%s is in the hub's own cache", file.path)
            else:
                with _in_our_words(f"{listing.repo_id}: {file.path}"):
                    hf_hub_download(
                        listing.repo_id,
                        file.path,
                        revision=listing.revision,
                        local_dir=folder,
                        tqdm_class=_bar(told),
                    )
        self._check(target, file, listing.repo_id)
        return target

    def head(self, listing: Listing, file: RemoteFile, size: int, target: Path) -> None:
        """The first bytes of a file, as `target`. Raises LibraryError."""
        url = hf_hub_url(listing.repo_id, file.path, revision=listing.revision)
        headers = build_hf_headers() | {"range": f"bytes=0-{min(size, file.size) - 1}"}
        with (
            _in_our_words(f"{listing.repo_id}: {file.path}"),
            httpx2.Client(follow_redirects=True, timeout=30) as client,
            client.stream("GET", url, headers=headers) as response,
            target.open("wb") as out,
        ):
            response.raise_for_status()
            for part in response.iter_bytes():
                out.write(part[: size - out.tell()])
                if out.tell() >= size:
                    break

    @staticmethod
    def _check(path: Path, file: RemoteFile, repo_id: str) -> None:
        found = path.stat().st_size
        digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % found, usedforsecurity=False)
        with path.open("rb") as data:
            while chunk := data.read(_CHUNK):
                digest.update(chunk)
        if found != file.size or digest.hexdigest() != (file.sha256 or file.blob):
            path.unlink()
            raise LibraryError(
                f"{repo_id}: {file.path} came damaged ({found} of {file.size} bytes, or a wrong checksum), and was "
                "removed; pull again"
            )


def _file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(sibling.rfilename, sibling.size, lfs.sha256 if lfs else "", "" if lfs else sibling.blob_id or "")


def _bar(told: Told) -> type[tqdm]:
    """A progress bar of the client library that shows nothing and tells instead."""

    class Silent(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            told(int(kwargs.get("initial") or 0))
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs | {"disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            told(int(n or 0))
            return None

    return Silent


@contextmanager
def _in_our_words(what: str) -> Iterator[None]:
    try:
        yield
    except GatedRepoError as error:
        raise LibraryError(
            f"{what} asks for a consent: accept its terms on its page, and set HF_TOKEN to a token of yours"
        ) from error
    except RepositoryNotFoundError as error:
        raise LibraryError(f"{what} is not there, or is private; check the name, or set HF_TOKEN") from error
    except (RevisionNotFoundError, EntryNotFoundError, HFValidationError) as error:
        raise LibraryError(f"{what}: {_line(error)}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx2.HTTPError, TimeoutError) as error:
        raise LibraryError(
            f"{what} cannot be fetched ({_line(error)}); what has come is kept; pull again, or set HF_ENDPOINT"
        ) from error


def _line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
