"""Assets: the files of the dashboard, read once, with what browsers are told to hold them to."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("static")
PREFIX = "/ui/"
INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, no script or style in the page itself, and no text that becomes markup: what a model writes is
# never more than text.
_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
GUARDS: Mapping[str, str] = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asks each time whether its copy is the daemon's own
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file. tag: changes with its content."""

    content: bytes
    media_type: str
    tag: str


def read_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """All files of the dashboard by their path on the server; that of its page is the prefix."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _TYPES)
    assets = {PREFIX + path.name: _asset(path) for path in files}
    return {PREFIX: assets[PREFIX + INDEX], **assets}


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
