"""HybridExecutor: runs steps on a CPU with accelerators, between which experts may move."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..cpu_kernels.descriptor import ENTRY, N_LOGITS, N_TOKENS
from ..cpu_kernels.team import Team
from ..gpu_kernels.device import DeviceLostError, DeviceMemoryError
from ..gpu_kernels.kernels import Kernels
from ..gpu_kernels.sizes import size_text
from ..placement.shape import CPU
from ..placement.streaming import LEAST_TOKENS
from .cpu_ops import CpuOps
from .decoder import record
from .device_experts import DeviceExperts
from .device_kv import DeviceKv, KvRoom
from .device_ops import DeviceOps
from .errors import CacheLostError
from .graphs import Graphs
from .handover import Handover
from .host_cost import Part
from .hybrid_ops import Devices, HybridOps
from .pack import PackedWeights
from .residency import Residency
from .resident_room import ResidentRoom
from .segment import HostClock
from .spec import ModelSpec
from .step_inputs import StepInputs
from .streams import Streams

if TYPE_CHECKING:  # it imports this
    from .acceleration import Acceleration


class HybridExecutor:
    """An executor (see `executor.Executor`). residency, room: may be changed between steps. started: when the last one
    was, on the accelerators' clock. placement: what lies where; of experts only at first. lost: accelerators that have
    failed and are done without.

    Raises DeviceFullError where the placement does not fit, before a weight is read.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: PackedWeights,
        ops: CpuOps,
        inputs: StepInputs,
        team: Team,
        acceleration: "Acceleration",
    ) -> None:
        self.placement, self._note, cost = acceleration.placement, acceleration.note, acceleration.cost
        self._free_memory = acceleration.free_memory
        self.lost: frozenset[int] = frozenset()
        self.residency = Residency(weights, spec.num_layers, acceleration.accelerators)
        self._spec, self._ops, self._inputs, self._team = spec, ops, inputs, team
        self._devices = Devices(clock=HostClock(self.residency.accelerators[0], cost) if cost else None)
        self._streams: Streams | None = None
        try:
            for number, one in enumerate(acceleration.kernels):
                room = KvRoom(
                    store=ops.cache,
                    blocks=acceleration.kv_pool(number, ops.cache.num_blocks),
                    clock=self._devices.clock,
                    note=self._note,
                )
                self._take(number, one, weights, room, streaming=acceleration.streaming is not None)
            self.residency.place(self.placement)
            self.room = ResidentRoom(self.residency, weights)
            for home in self._devices.homes.values():
                home.load()
            if acceleration.streaming:
                self._streams = Streams.of(acceleration.streaming, weights, self.residency, self.placement, self._note)
                for number, experts in self._devices.experts.items():
                    experts.staging = self._streams.cards.get(number)
        except BaseException:
            self.close()
            raise
        self._logits = torch.from_numpy(ops.buffers.logits)
        self._record()

    def _take(self, number: int, kernels: Kernels, weights: PackedWeights, room: KvRoom, *, streaming: bool) -> None:
        """Take the memory of an accelerator for what it has to do."""
        placement, spec, accelerator = self.placement, self._spec, self.residency.accelerators[number]
        graphs = self._devices.graphs[number] = Graphs(accelerator, kernels, self._inputs.limits)
        dense = tuple(layer for layer, device in enumerate(placement.dense) if device == number)
        places = {"embed": placement.embed, "head": placement.head}
        ends = tuple(name for name, device in places.items() if device == number)
        if dense or ends:
            self._devices.homes[number] = DeviceOps(
                accelerator, kernels, graphs, spec, weights, self._inputs, room, dense, ends
            )
        guests = tuple(
            layer
            for layer, experts in enumerate(placement.experts)
            if placement.dense[layer] != number
            and (np.any(experts == number) or (streaming and len(experts) and placement.dense[layer] == CPU))
        )
        if guests:
            tokens, normed = self._inputs.limits.tokens, self._ops.buffers.normed
            self._devices.experts[number] = DeviceExperts(
                accelerator, kernels, graphs, spec, weights, guests, tokens, normed
            )
        if self._note and (dense or ends or guests) and not graphs.can_capture:
            detail = f"the kernels of {accelerator.name} wait for what they compute, so that no graph can have them"
            self._note("launched_one_by_one", f"{detail}; each step launches them one by one")

    def _record(self) -> None:
        for graphs in self._devices.graphs.values():
            graphs.drop()  # they are of numbers of steps
        self._plain = self._streaming = self._recorded(None)
        if self._streams and self._streams.cards:
            self._streaming = self._recorded(self._streams)

    def _recorded(self, streams: Streams | None) -> HybridOps:
        ops = HybridOps(
            self._spec, self._ops, self._inputs, self._team, self.residency, self.placement, self._devices, streams
        )
        record(self._spec, ops)
        return ops

    @property
    def num_ops(self) -> int:
        return len(np.unique(np.concatenate([part.program.rows[0, :, ENTRY] for part in self._plain.segments])))

    @property
    def head_reads_all(self) -> bool:
        return self.placement.head != CPU

    def fetch_x(self) -> None:
        home = self._devices.homes.get(self.placement.head)
        if home:
            Handover(self._ops.buffers.x, self._inputs).to_cpu(home)

    @property
    def bytes_streamed(self) -> int:
        """Of weights that were brought to accelerators for one step only."""
        return self._streams.bytes_streamed if self._streams else 0

    @property
    def kv(self) -> dict[int, DeviceKv]:
        """By accelerator: the keys and values of layers whose attention it runs."""
        return {number: home.kv for number, home in self._devices.homes.items() if home.kv.caches}

    @property
    def kv_bytes(self) -> int:
        return sum(kv.blocks * kv.block_bytes for kv in self.kv.values())

    def check_kv(self, wanted: Iterable[int]) -> None:
        wanted = tuple(wanted)
        for kv in self.kv.values():
            kv.check_integrity(wanted)

    def run(self) -> None:
        """An accelerator that fails meanwhile is given up, one whose memory runs out gives a part of its experts back,
        and the step begins again.

        Raises CacheLostError if one was given up that had dense parts of layers, and so a part of the KV cache;
        DeviceLostError if RAM has no room for what such a one had; DeviceMemoryError where there are no experts left to
        give back.
        """
        self.started = self.residency.accelerators[0].now()
        while True:
            try:
                self.residency.settle()
                tokens, logits = (int(self._inputs.counts[slot]) for slot in (N_TOKENS, N_LOGITS))
                for graphs in self._devices.graphs.values():
                    graphs.begin(tokens, logits, self.residency.layout)
                recorded = self._streaming if tokens >= LEAST_TOKENS else self._plain
                recorded.schedule.run()
                self._finish(tokens, logits)
                return
            except DeviceLostError as error:
                self._give_up(error)
            except DeviceMemoryError as error:
                self._shed(error)

    def _shed(self, error: DeviceMemoryError) -> None:
        """Have the CPU compute some of the experts, wherever there are any. Raises the error if there are none."""
        shed = {
            accelerator.name: nbytes
            for number, accelerator in enumerate(self.residency.accelerators)
            if not self._is_lost(number) and (nbytes := self.room.shed(number))
        }
        if not shed:
            raise error
        given = ", ".join(f"{size_text(nbytes)} of {name}" for name, nbytes in shed.items())
        if self._note:
            self._note("accelerator_out_of_memory", f"{error}; the CPU computes experts that took {given}")

    def _finish(self, tokens: int, logits: int) -> None:
        """Fetch what accelerators have left of the step, and wait for them."""
        for number, home in self._devices.homes.items():
            home.accelerator.wait("from", home.accelerator.record("compute"))
            if number == self.placement.head and home.rows:
                home.accelerator.copy(self._logits[: home.rows], home.buffers.logits[: home.rows], "from")
            home.choices.fetch()
            home.accelerator.synchronise(home.accelerator.record("from"))
            home.kv.finish()
            if self._spec.routing:
                routes = self._ops.buffers.branches["experts"].routes
                home.choices.take(routes, tokens, logits, self._spec.num_layers - 1)
        if self._devices.clock:
            self._devices.clock.charge((Part("step"),), self._inputs)

    def _give_up(self, error: DeviceLostError) -> None:
        """Do without the accelerators that failed; what they had is the CPU's from now on. Raises what `run` does, and
        the error if it is of none of them."""
        lost = {number for number in {*self._devices.experts, *self._devices.homes} if self._is_lost(number)}
        if not lost:
            raise error
        layers = [layer for layer, dense in enumerate(self.placement.dense) if dense in lost]
        given_back = self.residency.given_back_bytes
        for number in sorted(lost):
            self._drop(number)
        caches = self._ops.cache.layer_bytes * len(self._ops.cache.without_room(layers))
        if layers and self._free_memory:
            needed, free = caches + given_back - self.residency.given_back_bytes, self._free_memory()
            if needed > free:
                sizes = f"{size_text(needed)} of RAM, and {size_text(free)} are free"
                raise DeviceLostError(f"{error}; what it had would take {sizes}") from error
        self._ops.cache.add(layers)
        self._do_without(lost, f"{error}; the CPU computes what lay there")
        if layers:
            raise CacheLostError(str(error)) from error

    def _drop(self, number: int) -> None:
        """Give back what an accelerator had of experts."""
        self.residency.drop(number)
        self.room.forget(number)
        experts = self._devices.experts.pop(number, None)
        if experts:
            experts.close()
        if self._streams:
            self._streams.drop(number)

    def _do_without(self, lost: set[int], told: str) -> None:
        """lost: were dropped. told: in words."""
        for number in lost & self._devices.homes.keys():
            self._devices.homes.pop(number).close()
        for number in lost:
            del self._devices.graphs[number]
        self.lost, self.placement = self.lost | lost, self.placement.without(lost)
        self._stop_streaming()
        self._record()
        if self._note:
            self._note("accelerator_lost", told)

    def _stop_streaming(self) -> None:
        """To accelerators that were not made for experts of layers that are the CPU's now."""
        if self._streams is None:
            return
        streams, kinds = self._streams, enumerate(zip(self.placement.dense, self._spec.moe_layers, strict=True))
        own = {layer for layer, (dense, is_moe) in kinds if dense == CPU and is_moe}
        for number in tuple(streams.cards):
            experts = self._devices.experts.get(number)
            if experts and own <= experts.layers:
                continue
            streams.drop(number)
            if experts:
                experts.staging = None
            if self._note:
                name = self.residency.accelerators[number].name
                self._note("streaming_off", f"{name} has no buffers for experts of layers that are the CPU's now")

    def _is_lost(self, number: int) -> bool:
        try:
            self.residency.accelerators[number].synchronise()
        except DeviceLostError:
            return True
        return False

    def close(self) -> None:
        if self._streams:
            for card in tuple(self._streams.cards):
                self._streams.drop(card)
        self.residency.close()
        for experts in self._devices.experts.values():
            experts.close()
        for home in self._devices.homes.values():
            home.close()
        self._devices.experts.clear()
        self._devices.homes.clear()
        self._devices.graphs.clear()
