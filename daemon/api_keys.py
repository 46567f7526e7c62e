"""The file of API keys: who may use a daemon, and by what name each is known.

A line is `sha256:HEX`, the digest of a key in UTF-8, and after a space a name for it; `isotherm key` makes
such lines. A line of another form is a key itself. Keys of one name are one tenant's. Empty lines and lines that begin
with # are skipped.
"""

import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from .config import ConfigError, key_digest

_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})(?:\s+([A-Za-z0-9][A-Za-z0-9._-]{0,63}))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFIX = "isk-"  # by which scanners for secrets may know one


@dataclass(frozen=True, slots=True)
class KeyFile:
    """names: by the digest of each key. plain: those that are written out. exposed: why others of this machine can use
    or change them, None if they cannot."""

    names: dict[bytes, str]
    plain: tuple[str, ...]
    exposed: str | None


NO_KEYS = KeyFile({}, (), None)


def read_key_file(path: Path) -> KeyFile:
    """Raises ConfigError for a file that cannot be read, holds no key, or has a line that cannot be understood."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--api-key-file {path} cannot be read ({error}); name a text file with one key a line"
        ) from error
    names: dict[bytes, str] = {}
    plain: list[str] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("sha256:"):
            digest, name = _read_hashed(line, f"--api-key-file {path}, line {number}")
            names[digest] = name
        else:
            plain.append(line)
            names[key_digest(line)] = _nameless(key_digest(line))
    if not names:
        raise ConfigError(f"--api-key-file {path} holds no key; write one a line, or leave the flag out")
    return KeyFile(names, tuple(plain), _exposed(path, mode, bool(plain)))


def first_key(path: Path) -> str:
    """The first key that is written out. Raises ConfigError."""
    plain = read_key_file(path).plain
    if not plain:
        raise ConfigError(
            f"--api-key-file {path} holds digests of keys, which cannot be sent; name a file with the key itself"
        )
    return plain[0]


def new_key() -> str:
    """A key that nobody can guess."""
    return _PREFIX + secrets.token_urlsafe(32)


def key_line(key: str, name: str | None) -> str:
    """The line of a key file by which a key is accepted. Raises ConfigError for a name that cannot stand there."""
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(f"--name is {name!r}; letters, digits, dots, dashes and underscores make one, 64 at most")
    return f"sha256:{key_digest(key).hex()}" + (f" {name}" if name else "")


def _read_hashed(line: str, where: str) -> tuple[bytes, str]:
    match = _HASHED.fullmatch(line)
    if match is None:
        raise ConfigError(f"{where}: after sha256: come 64 hexadecimal digits, and after a space a name; isotherm key")
    digest = bytes.fromhex(match[1])
    return digest, match[2] or _nameless(digest)


def _nameless(digest: bytes) -> str:
    return f"key-{digest.hex()[:8]}"


def _exposed(path: Path, mode: int, plain: bool) -> str | None:
    if plain and mode & (stat.S_IRGRP | stat.S_IROTH):
        return f"{path} holds keys that others on this machine can read: chmod 600 it, or keep digests there"
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} can be written by others on this machine, who can let anybody in: chmod 600 it"
    return None
