"""KvStaging: blocks of the KV cache between an accelerator and RAM, on their way through pinned buffers by turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..gpu_kernels.device import Accelerator, Cost, Event
from ..gpu_kernels.kernels import KvCache
from ..gpu_kernels.kv_blocks import gather_blocks, scatter_blocks, staging_bytes
from ..placement.ledger import kv_staging_blocks
from .device_memory import DeviceMemory
from .kv_residence import Blocks
from .segment import HostClock


@dataclass(slots=True)
class _Half:
    """host, device: uint8, the same bytes on both sides of the link; told, ids: int64, blocks of the pool. queued: what
    uses it last; landing: blocks in RAM that its bytes are for once that is over."""

    host: torch.Tensor
    device: torch.Tensor
    told: torch.Tensor
    ids: torch.Tensor
    queued: Event | None = None
    landing: torch.Tensor | None = None


class KvStaging:
    """near: caches of layers on the accelerator, far: the same ones in RAM. batch: how many blocks go at once, at most.
    clock: is told how long the host copies, if somebody wants to know."""

    def __init__(
        self,
        accelerator: Accelerator,
        memory: DeviceMemory,
        near: Sequence[KvCache],
        far: Sequence[KvCache],
        clock: HostClock | None = None,
    ) -> None:
        self._accelerator, self._near, self._far, self._clock = accelerator, near, far, clock
        self.block_bytes = staging_bytes(near, 1)
        self.batch = kv_staging_blocks(self.block_bytes)  # with their numbers they take no more than a plan allows for
        self._halves = [self._half(memory) for _ in range(2)]
        self._turn = 0

    def _half(self, memory: DeviceMemory) -> _Half:
        size = (self.batch * self.block_bytes,)
        return _Half(
            host=self._accelerator.pinned(size, torch.uint8),
            device=memory.empty(size, torch.uint8),
            told=self._accelerator.pinned((self.batch,), torch.int64),
            ids=memory.empty((self.batch,), torch.int64),
        )

    def save(self, places: Blocks, blocks: Blocks) -> None:
        """Queue the way of at most `batch` blocks of the pool to blocks of RAM. The pool's may be written to by what is
        queued from now on; RAM has them after `land`."""
        half = self._named(places)
        gather = partial(gather_blocks, self._near, half.ids[: len(places)], half.device)
        nbytes = len(places) * self.block_bytes
        self._accelerator.launch(gather, self._cost(nbytes))
        self._accelerator.wait("from", self._accelerator.record("compute"))
        self._accelerator.copy(half.host[:nbytes], half.device[:nbytes], "from")
        half.queued = self._accelerator.record("from")
        half.landing = torch.from_numpy(blocks)

    def bring(self, places: Blocks, blocks: Blocks) -> None:
        """Queue the way of at most `batch` blocks of RAM to blocks of the pool, which kernels wait for. All that was
        saved must have landed."""
        half = self._named(places)
        nbytes = gather_blocks(self._far, torch.from_numpy(blocks), half.host).nbytes
        self._charge(nbytes)
        self._accelerator.copy(half.device[:nbytes], half.host[:nbytes], "to")
        self._accelerator.wait("compute", self._accelerator.record("to"))
        scatter = partial(scatter_blocks, self._near, half.ids[: len(places)], half.device)
        self._accelerator.launch(scatter, self._cost(nbytes))
        half.queued = self._accelerator.record("compute")

    def land(self) -> None:
        """Wait until all that was saved is in RAM."""
        for half in self._halves:
            if half.landing is not None:
                self._clear(half)

    def _named(self, places: Blocks) -> _Half:
        """The half whose turn it is, with blocks of the pool named on both sides."""
        self._turn = 1 - self._turn
        half = self._halves[self._turn]
        self._clear(half)
        half.told[: len(places)] = torch.from_numpy(places)
        self._accelerator.copy(half.ids[: len(places)], half.told[: len(places)], "to")
        half.queued = self._accelerator.record("to")
        self._accelerator.wait("compute", half.queued)
        return half

    def _clear(self, half: _Half) -> None:
        """Have nothing queued on it, and what it holds for RAM there."""
        if half.queued is not None:
            self._accelerator.synchronise(half.queued)
        if half.landing is not None:
            scatter_blocks(self._far, half.landing, half.host)
            self._charge(len(half.landing) * self.block_bytes)
        half.queued = half.landing = None

    def _cost(self, nbytes: int) -> Cost:
        return Cost(2.0 * nbytes, kernels=len(self._near))

    def _charge(self, nbytes: int) -> None:
        if self._clock:
            self._clock.charge_copy(nbytes)
