"""Pace: tokens a second over recent steps."""

_KEPT = 0.98  # of what was before, with each step


class Pace:
    """Of steps of one sort."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A step that took so long."""
        self._tokens = self._tokens * _KEPT + tokens
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def rate(self) -> float | None:
        """None before there was a step that took any time."""
        return self._tokens / self._seconds if self._seconds > 0 else None
