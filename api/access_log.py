"""AccessLog: a line of JSON for each request."""

import logging
import sys
from dataclasses import asdict
from logging.handlers import WatchedFileHandler
from pathlib import Path

import orjson

from .record import Record


class AccessLog:
    """A sink of records. It follows its file where that is moved away, so that logs can be rotated."""

    def __init__(self, path: Path) -> None:
        """`path` "-" is the standard error. Raises OSError for a file that cannot be written."""
        standard = str(path) == "-"
        self._handler = logging.StreamHandler(sys.stderr) if standard else WatchedFileHandler(path, encoding="utf-8")

    def __call__(self, record: Record) -> None:
        line = orjson.dumps(_fields(record)).decode()
        self._handler.emit(logging.LogRecord("access", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        self._handler.close()


def _fields(record: Record) -> dict[str, object]:
    """Without what is not there: most requests generate nothing."""
    fields = asdict(record)
    usage = fields.pop("usage") or {}
    del fields["trace"]
    if not record.choices:
        del fields["stream"], fields["choices"]
    return {name: value for name, value in (fields | usage).items() if value is not None and value != ""}
