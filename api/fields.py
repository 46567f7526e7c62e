"""Fields that this server does not act on: refused where ignoring them would change the answer, else noted once."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..daemon.errors import InvalidRequestError
from ..daemon.events import EventLog

_MAX_NOTED = 50  # names; clients choose them, and other events should stay to be seen


class FieldNotes:
    """Looks through the fields that a schema does not name. Makes the first sight of an unknown one an event."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._noted: set[str] = set()

    def check(
        self, sent: Mapping[str, Any] | None, refused: Mapping[str, Sequence[Any]], harmless: Container[str]
    ) -> None:
        """Raises InvalidRequestError for a field that is `refused`, unless its value is null, false, empty, or one of
        those named there, which ask for nothing. Notes those that are neither refused nor harmless."""
        for name, value in (sent or {}).items():
            if name in refused:
                if value and value not in refused[name]:
                    raise InvalidRequestError(f"{name} is not supported by this server; leave it out", name)
            elif name not in harmless:
                self._note(name)

    def _note(self, name: str) -> None:
        if name not in self._noted and len(self._noted) < _MAX_NOTED:
            self._noted.add(name)
            self._events.record("unknown_field", f"clients send {name[:80]!r}, which is ignored")
