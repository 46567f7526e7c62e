"""Cuda: an NVIDIA card, by torch."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch

from .budget import Budget, bytes_of, same_bytes
from .device import Cost, Costs, DeviceError, DeviceLostError, DeviceMemoryError, Event, StreamName
from .order import STREAMS
from .sizes import size_text

PATIENCE_S = 30.0
_SPIN_S = 2e-3  # a step of decode is waited for without sleeping
_PORTABLE, _READ_ONLY, _ALREADY = 1, 8, 712  # of cudaHostRegister: two flags, and the error for what it did before
_SLEEP_S = 1e-4
_FULL = "out of memory"
T = TypeVar("T")
_FAILURES = ("CUDA error", "Triton Error [CUDA]")  # how RuntimeErrors of the driver begin, where they have no class


@dataclass(frozen=True, slots=True)
class CudaEvent:
    """See `Event`."""

    card: "Cuda"
    raw: Any

    def is_done(self) -> bool:
        self.card.check()
        return bool(self.card.guard(self.raw.query))

    def since(self, earlier: Event) -> float:
        assert isinstance(earlier, CudaEvent)
        if not (self.is_done() and earlier.is_done()):
            raise DeviceError(f"{self.card.name} has not yet come to an event whose time was asked for")
        return float(earlier.raw.elapsed_time(self.raw)) / 1e3


class Cuda:
    """See `Accelerator`. limit_bytes: of the budget, by default what is free now; patience_s: how long the host waits
    for anything; library: torch. For one thread."""

    replays_calls = False

    def __init__(
        self,
        number: int = 0,
        *,
        limit_bytes: int | None = None,
        patience_s: float = PATIENCE_S,
        library: Any = torch,
    ) -> None:
        count = library.cuda.device_count() if library.cuda.is_available() else 0
        if number >= count:
            raise DeviceError(f"there is no cuda:{number}: torch sees {count or 'no'} cards")
        self.name = f"cuda:{number}"
        self.tensors: torch.device = library.device("cuda", number)
        self._torch, self._number, self._patience = library, number, patience_s
        free, total = library.cuda.mem_get_info(number)
        self._budget = Budget(self.name, int(free) if limit_bytes is None else limit_bytes, int(total))
        self._streams = {name: library.cuda.Stream(device=self.tensors) for name in STREAMS}
        self._locked: set[int] = set()  # addresses of what was locked for this card first
        self._failure: str | None = None
        self._capturing = False

    @property
    def limit_bytes(self) -> int:
        return self._budget.limit

    @property
    def used_bytes(self) -> int:
        return self._budget.used

    @property
    def free_bytes(self) -> int:
        """What torch keeps for later is free for us."""
        self.check()
        free, _ = self.guard(lambda: self._torch.cuda.mem_get_info(self._number))
        kept = self._torch.cuda.memory_reserved(self._number) - self._torch.cuda.memory_allocated(self._number)
        return int(free + kept)

    def set_limit(self, nbytes: int) -> None:
        falls = nbytes < self._budget.limit
        self._budget.set_limit(nbytes)
        if falls:
            self.guard(self._torch.cuda.empty_cache)  # what torch keeps for later would stay ours

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self._check_call("allocate")
        self._budget.check(bytes_of(tuple(shape), dtype))

        def allocate() -> torch.Tensor:
            with self._on("compute"):
                tensor: torch.Tensor = self._torch.empty(tuple(shape), dtype=dtype, device=self.tensors)
                return tensor

        tensor = self.guard(allocate)
        self._budget.hold(tensor)
        # It may be memory that kernels still in the compute stream use.
        event = self.record("compute")
        self.wait("to", event)
        self.wait("from", event)
        return tensor

    def release(self, tensor: torch.Tensor) -> None:
        self._budget.release(tensor)
        if self._failure is None:
            for stream in self._streams.values():
                tensor.record_stream(stream)  # it is nobody's before what they have now is done

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self._check_call("allocate")

        def allocate() -> torch.Tensor:
            tensor: torch.Tensor = self._torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)
            return tensor

        return self.guard(allocate)

    def lock(self, memory: torch.Tensor) -> bool:
        self._check_call("lock memory")
        register = self._torch.cuda.cudart().cudaHostRegister
        for flags in (_PORTABLE | _READ_ONLY, _PORTABLE):
            error = int(register(memory.data_ptr(), memory.nbytes, flags))
            if error == 0:
                self._locked.add(memory.data_ptr())
                return True
            with suppress(RuntimeError):  # the refusal, which torch tells of at its next kernel
                self._torch.empty((1,), dtype=torch.uint8, device=self.tensors).fill_(0)
            if error == _ALREADY:  # for another card
                return True
        return False

    def unlock(self, memory: torch.Tensor) -> None:
        if memory.data_ptr() in self._locked:  # else the driver refuses, and a later kernel would seem to fail
            self._locked.remove(memory.data_ptr())
            self._torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())

    def launch(self, work: Callable[[], object], cost: Costs) -> None:
        self.check()

        def on_stream() -> None:
            with self._on("compute"):
                work()

        self.guard(on_stream)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: StreamName) -> None:
        self.check()
        if self._capturing and stream != "compute":
            raise DeviceError(f"{self.name} captures only copies on its compute stream")
        into, out_of = same_bytes(target, source)

        def on_stream() -> None:
            with self._on(stream):
                into.copy_(out_of, non_blocking=True)

        self.guard(on_stream)

    def record(self, stream: StreamName) -> CudaEvent:
        self._check_call("record events")
        raw = self._torch.cuda.Event(enable_timing=True)
        self.guard(lambda: raw.record(self._streams[stream]))
        return CudaEvent(self, raw)

    def wait(self, stream: StreamName, event: Event) -> None:
        self._check_call("wait for events")
        assert isinstance(event, CudaEvent)
        self.guard(lambda: self._streams[stream].wait_event(event.raw))

    def synchronise(self, event: Event | None = None) -> None:
        self._check_call("synchronise")
        assert event is None or isinstance(event, CudaEvent)
        started = time.perf_counter()
        for one in [self.record(stream) for stream in STREAMS] if event is None else [event]:
            while not one.is_done():
                waited = time.perf_counter() - started
                if waited > self._patience:
                    self._lose(f"something did not end within {self._patience:g} s")
                if waited > _SPIN_S:
                    time.sleep(_SLEEP_S)

    def capture(self, work: Callable[[], object]) -> Callable[[], object]:
        self._check_call("capture")
        self.launch(work, Cost())  # it must be done, and kernels be compiled and loaded before they are captured
        self.synchronise()
        graph = self._torch.cuda.CUDAGraph()

        def record() -> None:
            # Other threads may use the card meanwhile.
            mode = {"stream": self._streams["compute"], "capture_error_mode": "thread_local"}
            with self._torch.cuda.graph(graph, **mode):
                work()

        self._capturing = True
        try:
            self.guard(record)
        finally:
            self._capturing = False
        return lambda: self.launch(graph.replay, Cost())

    def host_work(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def now(self) -> float:
        return time.perf_counter()

    def reset(self) -> None:
        """What took too long may be over by now. What failed takes the card from this process for good."""
        self._failure = None
        self.synchronise()

    def check(self) -> None:
        if self._failure is not None:
            raise DeviceLostError(f"{self.name}: {self._failure}; what was queued is lost. Reset it to try again")

    def guard(self, call: Callable[[], T]) -> T:
        """What it returns; errors of the card become those of `device`, all others stay."""
        try:
            return call()
        except self._torch.OutOfMemoryError as error:
            raise self._full() from error
        except RuntimeError as error:
            if isinstance(error, self._torch.AcceleratorError) or str(error).startswith(_FAILURES):
                if _FULL in str(error):  # of the driver, which had no room for a module or a graph
                    raise self._full() from error
                self._lose(str(error).splitlines()[0], error)
            raise

    def _full(self) -> DeviceMemoryError:
        free, _ = self._torch.cuda.mem_get_info(self._number)
        return DeviceMemoryError(
            f"{self.name} is out of memory: {size_text(self.used_bytes)} of its limit of "
            f"{size_text(self.limit_bytes)} are in use, and {size_text(free)} are free, other programs counted. "
            "Place less on it"
        )

    def _lose(self, what: str, error: Exception | None = None) -> NoReturn:
        self._failure = what
        raise DeviceLostError(f"{self.name}: {what}; what was queued is lost. Reset it to try again") from error

    def _check_call(self, what: str) -> None:
        self.check()
        if self._capturing:
            raise DeviceError(f"{self.name} captures launches, and cannot {what} meanwhile")

    def _on(self, stream: StreamName) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self._torch.cuda.stream(self._streams[stream])
        return context
