"""ResponseStore: the responses that clients may come back to, in memory, bounded by number and bytes."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ...daemon.errors import InvalidRequestError
from ..errors import UnknownResponseError
from .items import Item


class PreviousResponseError(InvalidRequestError):
    """The response that a request builds on is not there."""

    code = "previous_response_not_found"


@dataclass(frozen=True, slots=True)
class Stored:
    """response: the final object. items: all that led to it, those of the responses before it included."""

    response: dict[str, Any]
    items: tuple[Item, ...]

    @property
    def continued(self) -> tuple[Item, ...]:
        """The items with which a response that builds on this one begins."""
        return (*self.items, *self.response["output"])


class ResponseStore:
    """Forgets the response that was used the longest time ago first. Each tenant sees his own only. Used by several
    threads."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._held: OrderedDict[tuple[str, str], bytes] = OrderedDict()  # as JSON, whose size is known
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, tenant: str, stored: Stored) -> None:
        """Keep a response, unless it alone is larger than all that may be kept."""
        data = orjson.dumps([stored.response, stored.items])
        if len(data) > self._max_bytes:
            return
        with self._lock:
            self._held[tenant, stored.response["id"]] = data
            self._bytes += len(data)
            while self._bytes > self._max_bytes or len(self._held) > self._max_count:
                self._bytes -= len(self._held.popitem(last=False)[1])

    def get(self, tenant: str, response_id: str) -> Stored:
        """A kept response. Raises UnknownResponseError."""
        with self._lock:
            if (tenant, response_id) not in self._held:
                raise UnknownResponseError(f"there is no response {response_id[:80]!r} here; {self._policy()}")
            self._held.move_to_end((tenant, response_id))
            data = self._held[tenant, response_id]
        response, items = orjson.loads(data)
        return Stored(response, tuple(items))

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response. Raises UnknownResponseError."""
        self.get(tenant, response_id)
        with self._lock:
            self._bytes -= len(self._held.pop((tenant, response_id), b""))

    def items_before(self, tenant: str, response_id: str | None) -> Sequence[Item]:
        """The items that a request begins with which builds on this response. Raises PreviousResponseError."""
        if response_id is None:
            return ()
        try:
            return self.get(tenant, response_id).continued
        except UnknownResponseError as error:
            raise PreviousResponseError(str(error), "previous_response_id") from None

    def _policy(self) -> str:
        return f"the last {self._max_count} are kept in memory, {self._max_bytes >> 20} MiB of them at most"
