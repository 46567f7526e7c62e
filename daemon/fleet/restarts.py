"""Restarts: how many of them are a remedy."""

from collections.abc import Callable

MAX_RESTARTS, WITHIN_S = 3, 3600.0  # of all models together; who needs more is lost


class Restarts:
    """The restarts of the last hour. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: list[float] = []

    def allow(self) -> bool:
        """Whether another one may be made, which is counted then."""
        now = self._clock()
        self._times = [at for at in self._times if now - at < WITHIN_S]
        if len(self._times) >= MAX_RESTARTS:
            return False
        self._times.append(now)
        return True
