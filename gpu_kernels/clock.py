"""Clock and Timeline: time as a model has it, for emulated devices. Nothing waits for real."""

from .pinned import PinnedMemory


class Clock:
    """The host's time in seconds: it goes on only by what the host is said to do, and by waiting. The devices of a host
    share it, and the memory that it has pinned for them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pinned = PinnedMemory()

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def reach(self, time: float) -> None:
        """Wait for a time, which may be over."""
        self.now = max(self.now, time)


class Timeline:
    """A stream of a device: when what was queued on it ends. Ops follow each other; the first starts when the host has
    queued it. `seconds` may be infinite."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._copying = False
        self.end = 0.0

    def work(self, seconds: float) -> None:
        self.end = max(self.end, self._clock.now) + seconds
        self._copying = False

    def copy(self, hop: float, seconds: float) -> None:
        """A copy that is queued while the one before it runs follows without a hop of its own."""
        follows = self._copying and self.end > self._clock.now
        self.end = max(self.end, self._clock.now) + seconds + (0.0 if follows else hop)
        self._copying = True

    def wait(self, time: float) -> None:
        if time > self.end:
            self.end, self._copying = time, False

    def stop(self) -> None:
        """Forget what was queued."""
        self.end, self._copying = self._clock.now, False
