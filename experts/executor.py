"""Executor: runs one step of a model that is laid out in the step's inputs; the plain one has it all on the CPU."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ..cpu_kernels.descriptor import ENTRY
from ..cpu_kernels.team import Team
from .cpu_ops import CpuOps
from .decoder import record
from .spec import ModelSpec
from .step_inputs import StepInputs


class Executor(Protocol):
    """Leaves logits and choices in the buffers of the CPU's ops, wherever they were computed."""

    @property
    def num_ops(self) -> int:
        """How many different ops run on the CPU."""
        ...

    @property
    def head_reads_all(self) -> bool:
        """The head is run for every token that the last layer is run for."""
        ...

    @property
    def kv_bytes(self) -> int:
        """What keys and values take of accelerators."""
        ...

    def run(self) -> None: ...

    def fetch_x(self) -> None:
        """Have the residual stream of the last step's wanted tokens in the host's buffer, each in its token's row."""
        ...

    def check_kv(self, wanted: Iterable[int]) -> None:
        """wanted: blocks of the KV cache that must hold something. Raises RuntimeError where that cannot be."""
        ...

    def close(self) -> None:
        """Give back what it took of accelerators."""
        ...


class CpuExecutor:
    """The whole model as one program of the CPU team."""

    def __init__(self, spec: ModelSpec, ops: CpuOps, inputs: StepInputs, team: Team) -> None:
        record(spec, ops)
        self._program, self._inputs, self._team = ops.program(), inputs, team

    @property
    def num_ops(self) -> int:
        return len(np.unique(self._program.rows[..., ENTRY]))

    @property
    def head_reads_all(self) -> bool:
        return False

    @property
    def kv_bytes(self) -> int:
        return 0

    def run(self) -> None:
        self._team.run(self._program, self._inputs.counts)

    def fetch_x(self) -> None:
        pass  # it is there

    def check_kv(self, wanted: Iterable[int]) -> None:
        """There is nowhere but RAM for them."""

    def close(self) -> None:
        pass
