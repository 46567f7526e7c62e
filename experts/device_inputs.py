"""DeviceInputs: what changes from step to step, as an accelerator's kernels read it: one copy a step."""

from itertools import accumulate

import numpy as np
import torch

from ..cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from ..cpu_kernels.layout import KV_BLOCK, SEGMENT
from ..gpu_kernels.device import Accelerator
from ..gpu_kernels.kernels import Sequences
from .device_kv import DeviceKv
from .device_memory import DeviceMemory
from .graphs import rounded
from .step_inputs import StepInputs

_LINE = 16  # int64 that parts begin on a multiple of
_NAMES = ("tokens", "positions", "slots", "sequence", "logit_rows")


class DeviceInputs:
    """Of the steps that are laid out in `inputs`, in memory that is taken from `memory`. columns: of block tables,
    enough for the longest context of a step; there are few sizes, since launches depend on them."""

    def __init__(self, accelerator: Accelerator, memory: DeviceMemory, inputs: StepInputs) -> None:
        self._accelerator, self._inputs = accelerator, inputs
        sizes = [_LINE, *(getattr(inputs, name).size for name in _NAMES), inputs.tables.size]
        starts = [0, *accumulate(-(-size // _LINE) * _LINE for size in sizes)]
        self._starts = dict(zip(("counts", *_NAMES, "tables"), starts, strict=False))
        self._host = accelerator.pinned((starts[-1],), torch.int64)
        self._device = memory.empty((starts[-1],), torch.int64)
        self._columns = inputs.tables.shape[1]
        self.tokens = self.logits = 0  # of the step
        self.columns = self._rows = self._logit_rows = 0  # of what kernels are given

    def send(self, kv: DeviceKv, rows: int = 0) -> None:
        """Queue the copy of a step that was laid out; kernels wait for it. kv: where its blocks are. rows: that kernels
        are given, if not as many as there are tokens, and as many of logits; of what is in those beyond, only
        `logit_rows` are numbers of rows."""
        inputs, host = self._inputs, self._host.numpy()
        self.tokens, self.logits = (int(inputs.counts[slot]) for slot in (N_TOKENS, N_LOGITS))
        host[:2] = self.tokens, self.logits
        for name in _NAMES:
            size = self.logits if name == "logit_rows" else self.tokens
            start = self._starts[name]
            values = getattr(inputs, name)[:size]
            host[start : start + size] = kv.slots(values) if name == "slots" else values
        self._rows, self._logit_rows = rows or self.tokens, rows or self.logits
        start = self._starts["logit_rows"]
        host[start + self.logits : start + self._logit_rows] = 0
        segments = int(inputs.positions[: self.tokens].max()) // SEGMENT + 1
        self.columns = min(rounded(segments) * (SEGMENT // KV_BLOCK), self._columns)
        sequences = int(inputs.sequence[self.tokens - 1]) + 1
        start, used = self._starts["tables"], sequences * self._columns
        host[start : start + used] = kv.tables(inputs.tables[:sequences]).reshape(-1)
        self._accelerator.copy(self._device[: start + used], self._host[: start + used], "to")
        self._accelerator.wait("compute", self._accelerator.record("to"))

    def count(self, *, narrowed: bool) -> torch.Tensor:
        """int32 [1]: of tokens, or of those whose logits are wanted."""
        first = 2 if narrowed else 0  # the lower half of an int64
        return self._device[: _LINE // 2].view(torch.int32)[first : first + 1]

    @property
    def ids(self) -> torch.Tensor:
        """int64 [tokens]: of the vocabulary."""
        return self._part("tokens", self._rows)

    @property
    def logit_rows(self) -> torch.Tensor:
        return self._part("logit_rows", self._logit_rows)

    @property
    def places(self) -> Sequences:
        tables = self._part("tables", self._inputs.tables.size).view(-1, self._columns)[:, : self.columns]
        positions, slots, sequence = (self._part(name, self._rows) for name in ("positions", "slots", "sequence"))
        return Sequences(positions, slots, sequence, tables)

    def _part(self, name: str, size: int) -> torch.Tensor:
        start = self._starts[name]
        return self._device[start : start + size]

    def seen(self, window: int | None) -> tuple[int, int]:
        """Pairs of a token of the step and a position that it sees; positions that the last token of each sequence
        sees, which are read at least."""
        seen = self._inputs.positions[: self.tokens] + 1
        seen = seen if window is None else np.minimum(seen, window)
        last = np.flatnonzero(np.diff(self._inputs.sequence[: self.tokens], append=-1))
        return int(seen.sum()), int(seen[last].sum())
