"""The op set of a CPU with accelerators: which device runs an op follows from the placement.

What the CPU does is recorded into segments, each as long as nothing comes from an accelerator in between.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.team import Team
from .cpu_ops import CpuOps
from .device_experts import DeviceExperts
from .residency import Residency
from .segment import Segment
from .spec import ModelSpec
from .split_mixture import SplitMixture
from .step_inputs import StepInputs

Step = Callable[[], None]


class HybridOps:
    """Collects a step of the model (see `decoder.OpSet`) as `steps`, to be run one after the other."""

    def __init__(
        self,
        spec: ModelSpec,
        cpu: CpuOps,
        inputs: StepInputs,
        team: Team,
        residency: Residency,
        devices: Mapping[int, DeviceExperts],
    ) -> None:
        self.steps: list[Step] = []
        self.segments: list[Segment] = []
        self._spec, self._cpu, self._inputs, self._team = spec, cpu, inputs, team
        self._residency, self._devices = residency, devices
        self._narrowed = False
        pairs = inputs.limits.tokens * (spec.routing.top_k if spec.routing else 0)
        self._shown: NDArray[np.int64] = np.zeros(pairs, np.int64)  # one for all layers: it is of the layer under way

    def embed(self) -> None:
        self._cpu.embed()

    def norm(self, role: str, readers: tuple[str, ...]) -> None:
        self._cpu.norm(role, readers)

    def narrow(self) -> None:
        self._narrowed = True
        self._cpu.narrow()

    def project(self, layer: int) -> None:
        self._cpu.project(layer)

    def rotate_and_store(self, layer: int) -> None:
        self._cpu.rotate_and_store(layer)

    def attend(self, layer: int) -> None:
        self._cpu.attend(layer)

    def output(self, layer: int) -> None:
        self._cpu.output(layer)

    def route(self, layer: int) -> None:
        if self._residency.is_split(layer):
            self._cpu.choose(layer)
            self._flush()
        else:
            self._cpu.route(layer)

    def feed_forward(self, layer: int, branch: str, *, together: bool) -> None:
        if branch == "" or not self._residency.is_split(layer):
            self._cpu.feed_forward(layer, branch, together=together)
        # Else nothing here waits for it: see `project_down`.

    def project_down(self, layer: int, branch: str) -> None:
        if branch == "experts" and self._residency.is_split(layer):
            self._mix(layer)
        else:
            self._cpu.project_down(layer, branch)

    def head(self) -> None:
        self._cpu.head()
        self._flush()

    def _mix(self, layer: int) -> None:
        """The experts of a layer here and there; the shared expert while those on accelerators are under way."""
        branch = self._cpu.buffers.branches["experts"]
        self._cpu.group(layer, self._shown)
        self._cpu.feed_forward(layer, "experts", together=False)
        self._cpu.down(layer, "experts", few=0)
        cold = self._cut()
        assert cold is not None
        if self._spec.shared_intermediate_size:
            self._cpu.feed_forward(layer, "shared", together=False)
        beside = self._cut()
        mixture = SplitMixture(
            layer,
            branch,
            self._shown,
            self._devices,
            self._residency,
            ids=branch.routes.ids[sum(self._spec.moe_layers[:layer])],
            cold=cold,
            beside=beside,
            narrowed=self._narrowed,
        )
        self.steps.append(lambda: mixture.run(self._inputs.counts))
        self._cpu.combine(layer, "experts", few=0)

    def _cut(self) -> Segment | None:
        program = self._cpu.cut()
        if program is None:
            return None
        segment = Segment(program, self._team, self._inputs.counts)
        self.segments.append(segment)
        return segment

    def _flush(self) -> None:
        """Have the CPU run what was recorded."""
        segment = self._cut()
        if segment:
            self.steps.append(segment.run)
