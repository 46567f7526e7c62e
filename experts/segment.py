"""Segment: a stretch of a step that the CPU team runs without a stop."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.program import FrozenProgram
from ..cpu_kernels.team import Team


@dataclass(frozen=True, slots=True)
class Segment:
    program: FrozenProgram
    team: Team
    counts: NDArray[np.int64]

    def run(self) -> None:
        self.team.run(self.program, self.counts)
