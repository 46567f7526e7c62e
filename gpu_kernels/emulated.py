"""Emulated: an accelerator that is none. Torch does its work on the CPU, behind a budget of bytes and a model of time.

Its clock is that of the model: a kernel takes as long as its cost says, a copy as long as the link needs, the host's
work what the host says; no test waits. See `order` for when the work is done for real.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

import torch

from .budget import Budget, bytes_of, same_bytes
from .clock import Clock, Timeline
from .device import Cost, Costs, DeviceError, DeviceLostError, DeviceMemoryError, Event, StreamName
from .device_spec import Spec
from .faults import Fault, Faults
from .order import STREAMS, AtOnce, Late, Mark, Order

PATIENCE_S = 30.0
_GARBAGE = 0xA5  # in each byte of what is not known

_Graph = list[tuple[Callable[[], object], Callable[[], float]]]  # what is done, and the seconds that it takes


@dataclass(frozen=True, slots=True)
class EmulatedEvent:
    """See `Event`. time: when it is over; mark: what is done by then."""

    device: "Emulated"
    time: float
    mark: Mark

    def is_done(self) -> bool:
        self.device.check()
        done = self.time <= self.device.clock.now
        if done:
            self.mark.order.finish(self.mark)
        return done

    def since(self, earlier: Event) -> float:
        assert isinstance(earlier, EmulatedEvent)
        if not (self.is_done() and earlier.is_done()):
            raise DeviceError(f"{self.device.name} has not yet come to an event whose time was asked for")
        return self.time - earlier.time


class Emulated:
    """See `Accelerator`. Several that share a clock have one host. late: work is done as late as may be, in an order
    that it chooses; new memory then holds garbage. For one thread."""

    replays_calls = True

    def __init__(
        self,
        spec: Spec | None = None,
        *,
        clock: Clock | None = None,
        faults: Faults | None = None,
        late: Random | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.spec = spec or Spec()
        self.name = self.spec.name
        self.tensors = torch.device("cpu")
        self.clock = clock or Clock()
        self.faults = faults or Faults()
        self._budget = Budget(self.name, self.spec.vram_bytes, self.spec.vram_bytes)
        self._order: Order = AtOnce() if late is None else Late(late)
        self._dirty = late is not None
        self._streams = {name: Timeline(self.clock) for name in STREAMS}
        self._patience = patience_s
        self._failure: tuple[float, str] | None = None  # when, and what
        self._graph: _Graph | None = None  # that is being captured

    @property
    def limit_bytes(self) -> int:
        return self._budget.limit

    @property
    def used_bytes(self) -> int:
        return self._budget.used

    @property
    def free_bytes(self) -> int:
        return max(0, self.spec.vram_bytes - self._budget.used - self.faults.taken_bytes)

    def set_limit(self, nbytes: int) -> None:
        self._budget.set_limit(nbytes)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self._check_call("allocate")
        nbytes = bytes_of(tuple(shape), dtype)
        self._budget.check(nbytes, self.faults.taken_bytes)
        if self.faults.strikes("allocation"):
            raise DeviceMemoryError(f"{self.name} failed to allocate {nbytes:,} bytes, though it has room: a fault")
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if self._dirty:
            tensor.reshape(-1).view(torch.uint8).fill_(_GARBAGE)
        self._budget.hold(tensor)
        return tensor

    def release(self, tensor: torch.Tensor) -> None:
        self._budget.release(tensor)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self._check_call("allocate")
        return self.clock.pinned.zeros(shape, dtype)

    def lock(self, memory: torch.Tensor) -> bool:
        self._check_call("lock memory")
        self.clock.pinned.lock(memory)
        return True

    def unlock(self, memory: torch.Tensor) -> None:
        self.clock.pinned.unlock(memory)

    def launch(self, work: Callable[[], object], cost: Costs) -> None:
        self.check()
        if self._graph is not None:
            self._graph.append((work, partial(self._work_s, cost)))
        cost = cost() if callable(cost) else cost
        self._queue_kernel(work, self.spec.work_s(cost) + cost.kernels * self.spec.launch_s)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: StreamName) -> None:
        self.check()
        into, out_of = same_bytes(target, source)
        hop, seconds, pinned = self._way(target, source)
        work = partial(into.copy_, out_of)
        if self._graph is not None:
            if stream != "compute" or not pinned:
                raise DeviceError(f"{self.name} captures only copies on its compute stream, and from pinned memory")
            self._graph.append((work, lambda: hop + seconds))
        self._streams[stream].copy(hop, seconds)
        self._queue(stream, work, "copy", partial(into.fill_, _GARBAGE))
        if not pinned:
            self.synchronise(self.record(stream))  # the host hands it over piece by piece

    def record(self, stream: StreamName) -> EmulatedEvent:
        self._check_call("record events")
        return EmulatedEvent(self, self._streams[stream].end, self._order.mark(stream))

    def wait(self, stream: StreamName, event: Event) -> None:
        self._check_call("wait for events")
        assert isinstance(event, EmulatedEvent)
        self._streams[stream].wait(event.time)
        self._order.wait(stream, event.mark)

    def synchronise(self, event: Event | None = None) -> None:
        self._check_call("synchronise")
        assert event is None or isinstance(event, EmulatedEvent)
        events = [self.record(stream) for stream in STREAMS] if event is None else [event]
        end = max(event.time for event in events)
        if end - self.clock.now > self._patience:
            self.clock.advance(self._patience)
            self._failure = self.clock.now, f"something did not end within {self._patience:g} s"
        else:
            self.clock.reach(end)
        self.check()
        for event in events:
            event.mark.order.finish(event.mark)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self._check_call("capture")
        graph: _Graph = []
        self._graph = graph
        try:
            work()
        finally:
            self._graph = None
        return partial(self._replay, graph)

    @contextmanager
    def host_work(self, seconds: float) -> Iterator[None]:
        yield
        self.clock.advance(seconds)

    def now(self) -> float:
        return self.clock.now

    def reset(self) -> None:
        if self.faults.dead:
            raise DeviceLostError(f"{self.name} does not come back: a fault")
        self._failure = None
        self._order.forget()
        for timeline in self._streams.values():
            timeline.stop()

    def check(self) -> None:
        """Raises DeviceLostError once the host may have seen that something failed."""
        if self._failure is not None and self._failure[0] <= self.clock.now:
            raise DeviceLostError(f"{self.name}: {self._failure[1]}; what was queued is lost. Reset it to try again")

    def _check_call(self, what: str) -> None:
        self.check()
        if self._graph is not None:
            raise DeviceError(f"{self.name} captures launches, and cannot {what} meanwhile")

    def _way(self, target: torch.Tensor, source: torch.Tensor) -> tuple[float, float, bool]:
        """Of a copy: seconds before it, seconds of its bytes, and whether the host is free meanwhile."""
        to_device, from_device = self._budget.holds(target), self._budget.holds(source)
        if to_device and from_device:
            return self.spec.launch_s, self.spec.work_s(Cost(2.0 * target.nbytes)), True
        if not (to_device or from_device):
            raise ValueError(f"neither end of a copy lies on {self.name}: was it released?")
        host, rate = (source, self.spec.to_gb_s) if to_device else (target, self.spec.from_gb_s)
        return self.spec.hop_s, target.nbytes / rate / 1e9, self.clock.pinned.holds(host)

    def _replay(self, graph: _Graph) -> None:
        """One launch, and then what the work takes this time."""
        self._check_call("replay")
        self._queue_kernel(_nothing, self.spec.launch_s)
        stream = self._streams["compute"]
        for work, seconds in graph:
            if self._failure is not None:
                return
            stream.work(seconds())
            if math.isfinite(stream.end):
                self._order.add("compute", work)

    def _work_s(self, cost: Costs) -> float:
        return self.spec.work_s(cost() if callable(cost) else cost)

    def _queue_kernel(self, work: Callable[[], object], seconds: float) -> None:
        self._streams["compute"].work(math.inf if self.faults.strikes("hang") else seconds)
        self._queue("compute", work, "launch")

    def _queue(
        self, stream: StreamName, work: Callable[[], object], what: Fault, instead: Callable[[], object] | None = None
    ) -> None:
        """After a failure nothing is done for real, nor after what never ends."""
        end = self._streams[stream].end
        if self._failure is None and self.faults.strikes(what):
            self._failure = end, f"a {what} failed"
            work = instead or _nothing
        elif self._failure is not None:
            return
        if math.isfinite(end):
            self._order.add(stream, work)


def _nothing() -> None:
    pass
