"""Threads that fill memory before a team reads it: at each memory node some, for that node's share.

The system takes a page from the node of the thread that touches it first. So who fills memory decides where it lies.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from .seating import Seating

Item = TypeVar("Item")
Result = TypeVar("Result")


class Crew:
    """As many threads as the team of `seating` has; on a machine of one node they are not bound. A context manager."""

    def __init__(self, seating: Seating) -> None:
        nodes = [seat.node for seat in seating.seats]
        self._pools = [
            ThreadPoolExecutor(nodes.count(node), initializer=seating.take, initargs=(seating.at(node),))
            for node in range(seating.nodes)
        ]

    def map(
        self, work: Callable[[Item], Result], items: Iterable[Item], node_of: Callable[[Item], int] = lambda item: 0
    ) -> Iterator[Result]:
        """`work` of each item on a thread of the item's node; results in order. What it raises is raised here."""
        futures = [self._pools[node_of(item)].submit(work, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=kind is not None)
