"""DeviceKv: keys and values of the layers whose attention an accelerator runs, and which of them lie in RAM for now."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import N_TOKENS
from ..cpu_kernels.layout import KV_BLOCK
from ..gpu_kernels.device import Accelerator, DeviceLostError
from .device_cache import device_caches, host_caches
from .device_memory import DeviceMemory
from .kv_residence import Blocks, KvResidence
from .kv_staging import KvStaging
from .kv_store import KvStore
from .segment import HostClock
from .spec import ModelSpec
from .step_inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRoom:
    """Where keys and values have room. store: in RAM; blocks: of the accelerator's own. Where that is fewer than the
    store has, its layers have a place in the store too. clock: is told how long the host copies; note: what failed."""

    store: KvStore
    blocks: int
    clock: HostClock | None = None
    note: Callable[[str, str], None] | None = None


class DeviceKv:
    """caches: by layer. Kernels find blocks in them by `tables` and `slots` of what the step names.

    Of fewer blocks than there are logical ones, those that a step does not use make room for those that it does: the
    least recently used go to RAM, and come back when they are used. offloaded, brought_back: how many did, and
    block_bytes what each is, in all layers here.
    """

    def __init__(
        self, accelerator: Accelerator, memory: DeviceMemory, spec: ModelSpec, room: KvRoom, layers: Iterable[int]
    ) -> None:
        store, layers = room.store, tuple(layers)
        self.blocks = min(room.blocks, store.num_blocks) if layers else 0
        self.caches = device_caches(accelerator, memory, spec, store.kind, layers, self.blocks)
        self.block_bytes = sum(cache.memory.nbytes // self.blocks for cache in self.caches.values())
        self.offloaded = self.brought_back = 0
        self._accelerator, self._note = accelerator, room.note
        self._residence: KvResidence | None = None
        if layers and self.blocks < store.num_blocks:
            far = host_caches(store, spec, layers)
            self._residence = KvResidence(store.num_blocks, self.blocks)
            self._staging = KvStaging(accelerator, memory, [*self.caches.values()], [*far.values()], room.clock)

    def begin(self, inputs: StepInputs) -> None:
        """Have all blocks of the step in the pool: kernels that are queued later find them there."""
        if self._residence is None:
            return
        step = _Used.of(inputs)
        with self._telling():
            self._staging.land()
            away = self._residence.begin(step.blocks, step.depths, step.held)
            for first in range(0, len(away), self._staging.batch):
                self._admit(self._residence, away[first : first + self._staging.batch])
        self._residence.write(step.blocks[step.written])

    def finish(self) -> None:
        """After a step: RAM has what left the pool."""
        if self._residence is not None:
            with self._telling():
                self._staging.land()

    def tables(self, tables: Blocks) -> Blocks:
        """Blocks of the pool for logical ones."""
        return tables if self._residence is None else self._residence.places(tables)

    def slots(self, slots: Blocks) -> Blocks:
        """Places in the pool, a block's number times KV_BLOCK and an offset, for those in logical blocks."""
        if self._residence is None:
            return slots
        return self._residence.places(slots // KV_BLOCK) * KV_BLOCK + slots % KV_BLOCK

    def check_integrity(self, wanted: Iterable[int]) -> None:
        """wanted: logical blocks that must hold something. Raises RuntimeError."""
        if self._residence is not None:
            self._residence.check_integrity(wanted)

    def _admit(self, residence: KvResidence, blocks: Blocks) -> None:
        """The books follow what was queued, so that a step that is begun again goes on from there."""
        short = len(blocks) - residence.num_free
        if short > 0:
            cold = residence.coldest(short)
            unsaved = cold[~residence.is_saved(cold)]
            if len(unsaved):
                self._staging.save(residence.places(unsaved), unsaved)
                self.offloaded += len(unsaved)
            residence.evict(cold)
        saved = residence.is_saved(blocks)
        blocks = np.concatenate([blocks[saved], blocks[~saved]])
        num_saved = int(saved.sum())
        if num_saved:
            self._staging.bring(residence.take(len(blocks))[:num_saved], blocks[:num_saved])
            self.brought_back += num_saved
        residence.admit(blocks)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except DeviceLostError as error:
            if self._note:
                self._note("kv_offload_failed", f"{error}; keys and values on {self._accelerator.name} are lost")
            raise


@dataclass(frozen=True, slots=True)
class _Used:
    """The logical blocks of a step, sequence by sequence: which block of its sequence each is, whether it holds
    something that earlier steps wrote, and whether the step writes to it."""

    blocks: Blocks
    depths: Blocks
    held: NDArray[np.bool_]
    written: NDArray[np.bool_]

    @classmethod
    def of(cls, inputs: StepInputs) -> "_Used":
        tokens = int(inputs.counts[N_TOKENS])
        positions, sequence = inputs.positions[:tokens], inputs.sequence[:tokens]
        last = np.flatnonzero(np.diff(sequence, append=-1))
        starts, ends = positions[np.r_[0, last[:-1] + 1]], positions[last] + 1
        counts = -(-ends // KV_BLOCK)
        depths = np.broadcast_to(np.arange(int(counts.max())), (len(last), int(counts.max())))
        used = depths < counts[:, None]
        rows, depths = np.nonzero(used)
        starts = starts[rows]
        blocks = inputs.tables[: len(last)][rows, depths]
        return cls(blocks, depths, depths * KV_BLOCK < starts, (depths + 1) * KV_BLOCK > starts)
