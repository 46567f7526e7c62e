"""When an emulated device does what is queued on it, for real: its clock does not depend on that.

At once is an order that the streams allow. A card may do it much later, though, and in any order that events leave
open; who forgets to wait for an event is right with the first and gets garbage with the second.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from .device import StreamName

STREAMS: tuple[StreamName, ...] = ("compute", "to", "from")


@dataclass(frozen=True, slots=True)
class Mark:
    """What an order was given on a stream up to some point."""

    order: "Order"
    stream: StreamName
    count: int


class Order(Protocol):
    """Does work of streams."""

    def add(self, stream: StreamName, work: Callable[[], object]) -> None: ...

    def wait(self, stream: StreamName, mark: Mark) -> None:
        """What is added to the stream later is done after the mark."""
        ...

    def mark(self, stream: StreamName) -> Mark: ...

    def finish(self, mark: Mark) -> None:
        """Have all done up to the mark."""
        ...

    def forget(self) -> None:
        """What is not yet done never will be."""
        ...


class AtOnce:
    """All is done when it is added."""

    def add(self, stream: StreamName, work: Callable[[], object]) -> None:
        work()

    def wait(self, stream: StreamName, mark: Mark) -> None:
        mark.order.finish(mark)

    def mark(self, stream: StreamName) -> Mark:
        return Mark(self, stream, 0)

    def finish(self, mark: Mark) -> None:
        pass

    def forget(self) -> None:
        pass


class Late:
    """Nothing is done before it must be, for the host waits. Then what must be is, and one time in two other things as
    well, in an order that `random` chooses among those that streams and events allow.

    `work` sees the host's variables as they are then: it must be bound to those that it needs.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._queues: dict[StreamName, deque[Callable[[], object] | Mark]] = {name: deque() for name in STREAMS}
        self._done: dict[StreamName, int] = dict.fromkeys(STREAMS, 0)

    def add(self, stream: StreamName, work: Callable[[], object]) -> None:
        self._queues[stream].append(work)

    def wait(self, stream: StreamName, mark: Mark) -> None:
        self._queues[stream].append(mark)

    def mark(self, stream: StreamName) -> Mark:
        return Mark(self, stream, self._done[stream] + len(self._queues[stream]))

    def finish(self, mark: Mark) -> None:
        needs = self._needs(mark)
        more = self._random.random() < 0.5
        while self._done[mark.stream] < mark.count:
            ready = [name for name in STREAMS if self._ready(name, self._done[name] < needs[name], more)]
            self._step(self._random.choice(ready))

    def forget(self) -> None:
        for name, queue in self._queues.items():
            self._done[name] += len(queue)
            queue.clear()

    def _needs(self, mark: Mark) -> Mapping[StreamName, int]:
        """Of each stream, how much must be done before the mark."""
        needs: dict[StreamName, int] = dict.fromkeys(STREAMS, 0)
        open_marks = [mark]
        while open_marks:
            latest = open_marks.pop()
            before, needs[latest.stream] = needs[latest.stream], max(needs[latest.stream], latest.count)
            done = self._done[latest.stream]
            queued = list(self._queues[latest.stream])[max(before - done, 0) : max(latest.count - done, 0)]
            open_marks += [entry for entry in queued if isinstance(entry, Mark) and entry.order is self]
        return needs

    def _ready(self, stream: StreamName, needed: bool, more: bool) -> bool:
        """Whether the next of the stream can be done. Another device's work is done only if it is needed."""
        if not self._queues[stream] or not (needed or more):
            return False
        head = self._queues[stream][0]
        if not isinstance(head, Mark):
            return True
        return head.count <= self._done[head.stream] if head.order is self else needed

    def _step(self, stream: StreamName) -> None:
        """Do the next of the stream."""
        head = self._queues[stream][0]
        if isinstance(head, Mark) and head.order is not self:
            head.order.finish(head)
        self._queues[stream].popleft()
        self._done[stream] += 1
        if not isinstance(head, Mark):
            head()
