"""Throughput: tokens per second over the last seconds, from a counter that is looked at now and then."""

from collections import deque


class Throughput:
    """Feed `sample` regularly; `rate` is the mean over the last `window_s` seconds. Times are monotonic seconds."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now: float, count: int) -> None:
        """The counter stands at `count`."""
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[1][0] >= self._window_s:
            self._samples.popleft()

    @property
    def rate(self) -> float:
        """Counts per second; 0 before there were two samples."""
        if len(self._samples) < 2:
            return 0.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - start) if end > start else 0.0
