"""AccessLog: a line of JSON for each request."""

import logging
import sys
from dataclasses import asdict
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import TextIO

import orjson

from .record import Record

logger = logging.getLogger(__name__)


class AccessLog:
    """A sink of records. It follows its file where that is moved away, so that logs can be rotated. What cannot be
    written is told once, until something can be again."""

    def __init__(self, path: Path) -> None:
        """`path` "-" is the standard error. Raises OSError for a file that cannot be written."""
        standard = str(path) == "-"
        self._handler = _Stream(sys.stderr) if standard else _File(path, encoding="utf-8")

    def __call__(self, record: Record) -> None:
        line = orjson.dumps(_fields(record)).decode()
        self._handler.emit(logging.LogRecord("access", logging.INFO, "", 0, line, None, None))

    def close(self) -> None:
        try:
            self._handler.close()
        except OSError as error:
            logger.warning("the end of the access log cannot be written: %s", error)


class _ToldOnce(logging.Handler):
    _fault = _told = ""

    def emit(self, record: logging.LogRecord) -> None:
        self._fault = ""
        super().emit(record)
        if self._fault and self._fault != self._told:
            logger.warning("the access log cannot be written: %s", self._fault)
        self._told = self._fault

    def handleError(self, record: logging.LogRecord) -> None:
        self._fault = str(sys.exc_info()[1])


class _Stream(_ToldOnce, logging.StreamHandler[TextIO]):
    pass


class _File(_ToldOnce, WatchedFileHandler):
    pass


def _fields(record: Record) -> dict[str, object]:
    """Without what is not there: most requests generate nothing."""
    fields = asdict(record)
    usage = fields.pop("usage") or {}
    del fields["trace"]
    if not record.choices:
        del fields["stream"], fields["choices"]
    return {name: value for name, value in (fields | usage).items() if value is not None and value != ""}
