"""Truncation: conversations that are too long lose their oldest turns."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ...daemon.errors import ContextLengthError
from .items import Item

T = TypeVar("T")
_LEADING = ("system", "developer")


def longest_that_fits(items: Sequence[Item], attempt: Callable[[Sequence[Item]], T]) -> T:
    """What `attempt` makes of as many of the last turns as it takes. A turn begins with a user's message, so that no
    result loses its call; what the system says at the beginning stays. Raises attempt's ContextLengthError if not even
    the last turn fits.
    """
    lead = next((i for i, item in enumerate(items) if item.get("role") not in _LEADING), len(items))
    starts = [i for i, item in enumerate(items) if i > lead and item.get("role") == "user"]
    if not starts:
        return attempt(items)
    best = None
    low, high = 0, len(starts) - 1  # a binary search for the first start that fits
    while low < high:
        middle = (low + high) // 2
        try:
            best = attempt((*items[:lead], *items[starts[middle] :]))
            high = middle
        except ContextLengthError:
            best, low = None, middle + 1
    return attempt((*items[:lead], *items[starts[low] :])) if best is None else best
