"""The op set of a CPU with accelerators: which device runs an op follows from the placement.

What the CPU does is recorded into segments, each as long as nothing comes from an accelerator in between; what
accelerators do is queued on them when its turn comes.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.team import Team
from ..placement.placed import Placement
from ..placement.shape import CPU
from .cold_pairs import ColdPairs
from .cpu_ops import CpuOps
from .device_experts import DeviceExperts
from .device_ops import DeviceOps
from .graphs import Graphs
from .handover import Handover
from .home_mixture import HomeMixture
from .host_cost import Part
from .residency import Residency
from .schedule import Schedule, Step, Work
from .segment import HostClock, Segment
from .spec import ModelSpec
from .split_mixture import SplitMixture
from .step_inputs import StepInputs
from .streams import Streams


@dataclass(frozen=True, slots=True)
class Devices:
    """By accelerator: `experts` computes experts of layers whose dense part is elsewhere, `homes` runs dense parts, and
    `graphs` has what both have captured. clock: what is told how long the CPU works, if somebody wants to know."""

    experts: dict[int, DeviceExperts] = field(default_factory=dict)
    homes: dict[int, DeviceOps] = field(default_factory=dict)
    graphs: dict[int, Graphs] = field(default_factory=dict)
    clock: HostClock | None = None


class HybridOps:
    """Collects a step of the model (see `decoder.OpSet`) as a `schedule`. streams: for steps that may bring experts to
    accelerators."""

    def __init__(
        self,
        spec: ModelSpec,
        cpu: CpuOps,
        inputs: StepInputs,
        team: Team,
        residency: Residency,
        placement: Placement,
        devices: Devices,
        streams: Streams | None = None,
    ) -> None:
        self.segments: list[Segment] = []
        self._steps: list[Step] = []
        self._spec, self._cpu, self._inputs, self._team = spec, cpu, inputs, team
        self._residency, self._placement = residency, placement
        self._experts, self._homes, self._clock = devices.experts, devices.homes, devices.clock
        self._streams = streams
        self._handover = Handover(cpu.buffers.x, inputs)
        self._at, self._narrowed = placement.embed, False
        self._parts: list[Part] = []  # of the CPU's work since the last cut
        pairs = inputs.limits.tokens * (spec.routing.top_k if spec.routing else 0)
        self._shown: NDArray[np.int64] = np.zeros(pairs, np.int64)  # one for all layers: it is of the layer under way
        self._reached: set[int] = set()  # accelerators
        self._steps += [Step(home.begin) for home in self._homes.values()]
        self.schedule = Schedule(self._steps, residency, number=0 if streams is None else 1)

    # -- the ops, in the order of `decoder.record`
    def embed(self) -> None:
        if self._at == CPU:
            self._cpu.embed()
        else:
            self._cpu.begin()
            self._flush()
            self._reach(self._at)
            self._queue(self._homes[self._at].embed)

    def norm(self, role: str, readers: tuple[str, ...]) -> None:
        home = self._go(self._placement.head if role == "final_norm" else self._placement.dense[_layer(role)])
        if home is None:
            self._cpu.norm(role, readers)
        elif role.endswith(".ffn_norm") and self._spec.moe_layers[_layer(role)]:
            self._queue(partial(self._norm_for_experts, home, role, readers))
        else:
            self._queue(partial(home.norm, role, readers))

    def narrow(self) -> None:
        self._narrowed = True
        if self._at == CPU:
            self._cpu.narrow()
        else:
            self._cpu.count_logits()

    def project(self, layer: int) -> None:
        self._run("project", layer)

    def rotate_and_store(self, layer: int) -> None:
        self._run("rotate_and_store", layer)

    def attend(self, layer: int) -> None:
        self._run("attend", layer)

    def output(self, layer: int) -> None:
        self._run("output", layer)
        if self._at == CPU:
            self._note("dense", layer)
        elif self._narrowed:
            self._queue(self._homes[self._at].compact)

    def route(self, layer: int) -> None:
        if self._at != CPU:
            self._run("route", layer)
        elif self._is_split(layer):
            self._cpu.choose(layer)
            self._flush()
        else:
            self._cpu.route(layer)
            self._note("experts", layer, self._ids(layer))

    def feed_forward(self, layer: int, branch: str, *, together: bool) -> None:
        if self._at != CPU:
            if branch != "experts":
                self._queue(partial(self._homes[self._at].feed_forward, layer, branch, together=together))
        elif branch == "" or not self._is_split(layer):
            self._cpu.feed_forward(layer, branch, together=together)
        # Else it is run while accelerators are at work: see `_split`.

    def project_down(self, layer: int, branch: str) -> None:
        if branch == "experts" and self._at != CPU:
            self._mix_at(self._homes[self._at], layer)
        elif branch == "experts" and self._is_split(layer):
            self._split(layer)
        elif self._at == CPU:
            self._cpu.project_down(layer, branch)
        else:
            self._queue(partial(self._homes[self._at].project_down, layer, branch))

    def head(self) -> None:
        if self._at == CPU:
            self._cpu.head()
            self._note("head")
            self._flush()
        else:
            self._queue(self._homes[self._at].head)

    # -- where experts lie here and there
    def _split(self, layer: int) -> None:
        """A layer of the CPU; the shared expert is computed while accelerators are at work."""
        cold = self._cold(layer)
        if self._spec.shared_intermediate_size:
            self._cpu.feed_forward(layer, "shared", together=False)
        mixture = SplitMixture(
            layer,
            cold,
            self._experts,
            self._residency,
            beside=self._cut(),
            narrowed=self._narrowed,
            streams=self._streams,
        )
        self._steps.append(Step(partial(mixture.run, self._inputs.counts)))
        self._cpu.combine(layer, "experts", few=0)

    def _mix_at(self, home: DeviceOps, layer: int) -> None:
        """A layer of an accelerator."""
        cold, normed = self._cold(layer), self._cpu.buffers.normed
        self._cpu.to_records(layer)
        mixture = HomeMixture(
            layer,
            self._at,
            home,
            self._experts,
            self._residency,
            cold=cold,
            normed=normed,
            records=self._cut(),
            streams=self._streams,
        )
        self._steps += mixture.steps()

    def _norm_for_experts(self, home: DeviceOps, role: str, readers: tuple[str, ...]) -> None:
        """The host reads what is normed where experts are elsewhere."""
        whole = bool((self._residency.where[_layer(role)] == self._placement.dense[_layer(role)]).all())
        home.norm(role, readers, *(() if whole else ("plain",)))

    def _cold(self, layer: int) -> ColdPairs:
        """The CPU's pairs of a layer: their outputs, in the order of experts."""
        self._cpu.group(layer, self._shown)
        self._cpu.feed_forward(layer, "experts", together=False)
        self._cpu.down(layer, "experts", few=0)
        self._note("experts", layer, self._shown)
        segment, branch = self._cut(), self._cpu.buffers.branches["experts"]
        assert segment is not None
        outs = torch.from_numpy(branch.outs).view(torch.float32)
        return ColdPairs(branch.routes, self._cpu.choice(layer), outs, self._shown, segment)

    # -- helpers
    def _is_split(self, layer: int) -> bool:
        """Whether experts of a layer of the CPU can be computed elsewhere."""
        return self._residency.is_split(layer) or bool(self._streams and self._streams.cards)

    def _ids(self, layer: int) -> NDArray[np.int64]:
        """Where the choices of all pairs are."""
        ids: NDArray[np.int64] = self._cpu.buffers.branches["experts"].routes.ids[self._cpu.choice(layer)]
        return ids

    def _note(
        self, what: Literal["dense", "experts", "head"], layer: int = 0, ids: NDArray[np.int64] | None = None
    ) -> None:
        """Part of what the CPU does until the next cut."""
        self._parts.append(Part(what, layer, ids, self._narrowed))

    def _run(self, op: str, layer: int) -> None:
        if self._at == CPU:
            getattr(self._cpu, op)(layer)
        else:
            self._queue(partial(getattr(self._homes[self._at], op), layer))

    def _go(self, device: int) -> DeviceOps | None:
        """Have x where the next op runs; None if that is the CPU."""
        before, self._at = self._at, device
        target = None if device == CPU else self._homes[device]
        if before != device:
            self._flush()
            if target is None:
                self._steps.append(Step(partial(self._handover.to_cpu, self._homes[before])))
            elif before == CPU:
                self._steps.append(Step(partial(self._handover.to_device, target)))
            else:
                self._steps.append(Step(partial(self._handover.between, self._homes[before], target)))
            self._reach(device)
            if before == CPU and target and self._narrowed:
                self._queue(target.compact)
        return target

    def _reach(self, device: int) -> None:
        """The first ops of an accelerator group the step's tokens."""
        if device != CPU and device not in self._reached:
            self._reached.add(device)
            self._steps.append(Step(self._homes[device].group, self._homes[device]))

    def _queue(self, work: Work) -> None:
        """Have the accelerator whose turn it is do something."""
        self._steps.append(Step(work, self._homes[self._at]))

    def _cut(self) -> Segment | None:
        program = self._cpu.cut()
        if program is None:
            return None
        segment = Segment(program, self._team, self._inputs, tuple(self._parts), self._clock)
        self._parts.clear()
        self.segments.append(segment)
        return segment

    def _flush(self) -> None:
        """Have the CPU run what was recorded."""
        segment = self._cut()
        if segment:
            self._steps.append(Step(segment.run))


def _layer(role: str) -> int:
    """Of a role that begins with "layers."."""
    return int(role.split(".")[1])
