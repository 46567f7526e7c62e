"""A torch whose cards are played: their tensors lie in the host's memory, and what is queued is done at once."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from isotherm.gpu_kernels.reference import TorchKernels
from torch.utils._python_dispatch import TorchDispatchMode

VRAM_BYTES = 64 << 10


class OutOfMemoryError(RuntimeError):
    """As torch's."""


class AcceleratorError(RuntimeError):
    """As torch's."""


class FakeStream:
    """waits_for: the events that it was told of."""

    def __init__(self, device: Any) -> None:
        self.waits_for: list[FakeEvent] = []
        self.hangs = False

    def wait_event(self, event: "FakeEvent") -> None:
        self.waits_for.append(event)


class FakeEvent:
    """Done after some questions, unless what it was recorded on hangs."""

    def __init__(self, fake: "FakeTorch", enable_timing: bool) -> None:
        self.fake, self.timed = fake, enable_timing
        self.stream: FakeStream | None = None
        self.questions, self.recorded_at = 0, 0.0

    def record(self, stream: FakeStream) -> None:
        self.stream = stream
        self.questions, self.recorded_at = 3, self.fake.clock.now

    def query(self) -> bool:
        self.fake.fail()
        assert self.stream is not None
        self.questions -= 1
        return self.questions < 0 and not self.stream.hangs

    def elapsed_time(self, later: "FakeEvent") -> float:
        assert self.timed
        assert later.timed
        return (later.recorded_at - self.recorded_at) * 1e3


class FakeGraph:
    """Counts its replays. works: what was captured, and is not done before."""

    def __init__(self) -> None:
        self.replays = 0
        self.stream: FakeStream | None = None
        self.works: list[Callable[[], object]] = []

    def replay(self) -> None:
        self.replays += 1
        for work in self.works:
            work()


class Recorder(TorchDispatchMode):
    """Takes ops that a graph can have instead of doing them, and refuses those that look at what is on the card, or
    that allocate."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        out = kwargs.get("out", args[0])
        if "out" not in kwargs and func is not torch.ops.aten.copy_.default:
            raise AcceleratorError(f"CUDA error: {func} is not permitted when stream is capturing")
        self._graph.works.append(partial(func, *args, **kwargs))
        return out


class FakeClock:
    """Stands for the module `time`: each look takes a microsecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeTorch:
    """For `Cuda(library=...)`. vram: bytes of each card; free: that torch could still have; error: what the next call
    to the card raises, and all after it; capturing: the graph that is; copies: between host and card, the stream of
    each and whether the host went on; streams: in the order of their making; locked, refusals: of host memory."""

    OutOfMemoryError, AcceleratorError = OutOfMemoryError, AcceleratorError

    def __init__(self, cards: int = 1, vram: int = VRAM_BYTES) -> None:
        self.free = vram
        self.capturing: FakeGraph | None = None
        self.error: Exception | None = None
        self.current: FakeStream | None = None
        self.clock = FakeClock()
        self.streams: list[FakeStream] = []
        self.graphs: list[FakeGraph] = []
        self.copies: list[tuple[FakeStream | None, bool]] = []
        self.kept_for: list[FakeStream] = []  # streams that memory was kept for when it was released
        self.emptied = 0
        self.kept = 0  # bytes that nothing uses, and that torch has not given back
        self.locked: list[int] = []  # addresses
        self.refusals: dict[int, int] = {}  # the error for flags of a lock
        self._tensor = _tensor_class(self)
        self.cuda = SimpleNamespace(
            is_available=lambda: cards > 0,
            device_count=lambda: cards,
            mem_get_info=lambda number: (self.free, vram),
            memory_reserved=lambda number: self.kept,
            memory_allocated=lambda number: 0,
            Stream=self._stream,
            Event=lambda enable_timing: FakeEvent(self, enable_timing),
            stream=self._on,
            empty_cache=self._empty_cache,
            CUDAGraph=self._graph,
            graph=self._capture,
            cudart=lambda: SimpleNamespace(cudaHostRegister=self._register, cudaHostUnregister=self.locked.remove),
        )

    def _register(self, address: int, nbytes: int, flags: int) -> int:
        error = self.refusals.get(flags, 0)
        if not error:
            self.locked.append(address)
        return error

    def device(self, name: str, number: int) -> str:
        return f"{name}:{number}"

    def fail(self) -> None:
        if self.error is not None:
            raise self.error

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
        self.fail()
        tensor = torch.empty(shape, dtype=dtype)
        if tensor.nbytes > self.free:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate")
        self.free -= tensor.nbytes
        return tensor.as_subclass(self._tensor)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return torch.zeros(shape, dtype=dtype)

    def _stream(self, device: str) -> FakeStream:
        self.streams.append(FakeStream(device))
        return self.streams[-1]

    def _graph(self) -> FakeGraph:
        self.graphs.append(FakeGraph())
        return self.graphs[-1]

    def _empty_cache(self) -> None:
        self.emptied += 1

    @contextmanager
    def _on(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def _capture(self, graph: FakeGraph, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        graph.stream, self.capturing = stream, graph
        try:
            with self._on(stream), Recorder(graph):
                yield
        finally:
            self.capturing = None


class CardKernels:
    """As those of a real card: a graph takes each op whole, and nothing is looked at from the host meanwhile."""

    waits = False

    def __init__(self, fake: FakeTorch) -> None:
        self._fake, self._kernels = fake, TorchKernels()

    def __getattr__(self, name: str) -> Callable[..., None]:
        op = getattr(self._kernels, name)

        def queue(*args: Any, **kwargs: Any) -> None:
            graph = self._fake.capturing
            if graph is None:
                op(*args, **kwargs)
            else:
                graph.works.append(partial(op, *args, **kwargs))

        return queue


def _tensor_class(fake: FakeTorch) -> type[torch.Tensor]:
    class CardTensor(torch.Tensor):
        """Tells of copies from it and to it."""

        def record_stream(self, stream: Any) -> None:
            fake.kept_for.append(stream)

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.copy_ and kwargs:
                fake.copies.append((fake.current, kwargs["non_blocking"]))
            return super().__torch_function__(func, types, args, kwargs)

    return CardTensor
