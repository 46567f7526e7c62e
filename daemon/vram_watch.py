"""VramWatch: what other programs leave of accelerators' memory, and what limits follow from that."""

import math
import time
from collections.abc import Callable, Iterator, Sequence

from ..gpu_kernels.device import Accelerator

LOOK_S, CALM_S = 1.0, 30.0
_GAIN = 64  # less than one part in so many is not taken again: experts would come and go for nothing


class VramWatch:
    """least_free: bytes of each accelerator that are to stay free for others, which do not ask before they take."""

    def __init__(
        self, accelerators: Sequence[Accelerator], least_free: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._accelerators, self._least_free, self._clock = accelerators, least_free, clock
        self._first = [accelerator.limit_bytes for accelerator in accelerators]
        self._short = [-math.inf] * len(accelerators)  # when there last was no room for more
        self._looked = -math.inf

    def look(self, asked: Sequence[int]) -> Iterator[tuple[int, int]]:
        """An accelerator and the limit that it is to have now, for each whose limit is to change. It may be less than
        what cannot be given back. asked: the limits of operators. It looks once a second, however often it is told to.
        """
        now = self._clock()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        for number, accelerator in enumerate(self._accelerators):
            free, used, limit = accelerator.free_bytes, accelerator.used_bytes, accelerator.limit_bytes
            left = used + free - self._least_free
            if free < self._least_free and used + free < self._first[number]:  # else only we have taken it
                self._short[number] = now
                yield number, min(left, limit)
                continue
            wanted = min(asked[number], max(left, used))
            if wanted < limit + max(asked[number] // _GAIN, 1):
                self._short[number] = now
            elif now - self._short[number] >= CALM_S:
                yield number, wanted
