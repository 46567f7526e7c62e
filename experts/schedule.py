"""Schedule: the steps of a recorded model, as long as experts lie as they do.

What one accelerator does without the host is queued together, which its graphs turn into one launch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from .device_ops import DeviceOps
from .residency import Residency

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Step:
    """work: of the host, or launches on the accelerator of `home` alone. needed: whether there is anything to do, where
    that changes as experts move."""

    work: Work
    home: DeviceOps | None = None
    needed: Callable[[], bool] | None = None


class Schedule:
    """steps: all that there may be, in order. number: of the schedule among those with the same accelerators."""

    def __init__(self, steps: Sequence[Step], residency: Residency, number: int = 0) -> None:
        self._steps, self._residency, self._number = steps, residency, number
        self._moves = -1
        self._works: list[Work] = []

    def run(self) -> None:
        if self._moves != self._residency.moves:
            self._works = self._arranged()
            self._moves = self._residency.moves
        for work in self._works:
            work()

    def _arranged(self) -> list[Work]:
        needed = [(n, step) for n, step in enumerate(self._steps) if step.needed is None or step.needed()]
        works: list[Work] = []
        for home, group in groupby(needed, key=lambda each: each[1].home):
            numbers, steps = zip(*group, strict=True)
            own = tuple(step.work for step in steps)
            works += own if home is None else [partial(home.queue, (self._number, numbers[0], numbers[-1]), own)]
        return works
