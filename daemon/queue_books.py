"""QueueBooks: what waits at the door and behind it, and whether one request more may.

Counts are pairs: requests, and prompt tokens of theirs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import OverloadedError
from .pace import Pace

_RETRY_AFTER_S = (1.0, 600.0)
_SHARE = 4  # what a tenant may hold, as a multiple of what is left to others

Count = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How many requests, and how many prompt tokens of theirs, may wait."""

    max_queued: int
    max_queued_tokens: int


class QueueBooks:
    """Of what was submitted and has not run yet, by tenant.

    The queue is bounded as a whole. A tenant with a name may moreover hold no more than four times what is left free,
    so that it alone fills four fifths of it, and there is always some room for one who has nothing in it.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._at_door: dict[str, Count] = {}
        self._behind: dict[str, Count] = {}  # taken, and by the engine's last word not yet run
        self._prefill_rate: float | None = None
        self._starts = Pace()  # of requests, while some waited

    def add(self, tenant: str, tokens: int) -> None:
        """A request was submitted."""
        self._at_door[tenant] = _sum(self._at_door.get(tenant, (0, 0)), (1, tokens))

    def take(self) -> None:
        """The engine took all that was at the door."""
        for tenant, count in self._at_door.items():
            self._behind[tenant] = _sum(self._behind.get(tenant, (0, 0)), count)
        self._at_door = {}

    def publish(self, behind: Mapping[str, Count], prefill_rate: float | None, seconds: float) -> None:
        """The engine's word on what it has taken and not yet run, `seconds` after its word before, and on how many
        tokens of prompts it computes in a second."""
        before = _total(self._behind)[0]
        if before:
            self._starts.add(before - _total(behind)[0], seconds)
        self._behind = dict(behind)
        self._prefill_rate = prefill_rate

    def check(self, tenant: str, tokens: int) -> None:
        """Raise OverloadedError if a request with a prompt of so many tokens may not wait."""
        requests, queued = _sum(_total(self._at_door), _total(self._behind))
        limits = self.limits
        # A prompt longer than the token limit may still wait alone, or it could never be served.
        if requests >= limits.max_queued or (requests and queued + tokens > limits.max_queued_tokens):
            raise OverloadedError(
                f"the queue is full: {requests} requests with {queued} prompt tokens wait; try again later",
                self._retry_after((requests, queued)),
            )
        own = _sum(self._at_door.get(tenant, (0, 0)), self._behind.get(tenant, (0, 0)))
        free = limits.max_queued - requests, limits.max_queued_tokens - queued
        if tenant and own[0] and (own[0] >= _SHARE * free[0] or own[1] >= _SHARE * free[1]):
            raise OverloadedError(
                f"your share of the queue is full: {own[0]} requests of this key with {own[1]} prompt tokens wait; "
                "try again later",
                self._retry_after(own),
            )

    def _retry_after(self, waiting: Count) -> float:
        """Seconds in which so much is done, at the rates that were measured."""
        requests, tokens = waiting
        low, high = _RETRY_AFTER_S
        seconds = low
        if self._prefill_rate:
            seconds = max(seconds, tokens / self._prefill_rate)
        if self._starts.rate:
            seconds = max(seconds, requests / self._starts.rate)
        return min(seconds, high)


def _sum(a: Count, b: Count) -> Count:
    return a[0] + b[0], a[1] + b[1]


def _total(counts: Mapping[str, Count]) -> Count:
    return sum(count[0] for count in counts.values()), sum(count[1] for count in counts.values())
