"""Handover: the residual stream on its way between devices, through the host's buffer of it.

The CPU leaves each token in its row, also of those whose logits are wanted, once only these matter; an accelerator has
them in its first rows then.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from .device_ops import DeviceOps
from .step_inputs import StepInputs


class Handover:
    """x: uint8 [tokens, row bytes], the host's."""

    def __init__(self, x: NDArray[np.uint8], inputs: StepInputs) -> None:
        self._x, self._inputs = torch.from_numpy(x).view(torch.float32), inputs

    def to_device(self, target: DeviceOps) -> None:
        """From the CPU: all tokens."""
        self._send(target, target.inputs.tokens)

    def to_cpu(self, source: DeviceOps) -> None:
        rows = self._fetch(source)
        if source.narrowed and rows:
            x = self._x.numpy()
            x[self._inputs.logit_rows[:rows]] = x[:rows].copy()

    def between(self, source: DeviceOps, target: DeviceOps) -> None:
        rows = self._fetch(source)
        target.narrowed = source.narrowed
        self._send(target, rows)

    def _send(self, target: DeviceOps, rows: int) -> None:
        if rows:
            target.accelerator.copy(target.buffers.x[:rows], self._x[:rows], "to")
            target.accelerator.wait("compute", target.accelerator.record("to"))

    def _fetch(self, source: DeviceOps) -> int:
        """Waits until the rows are in the host's buffer."""
        rows, accelerator = source.rows, source.accelerator
        if rows:
            accelerator.wait("from", accelerator.record("compute"))
            accelerator.copy(self._x[:rows], source.buffers.x[:rows], "from")
            accelerator.synchronise(accelerator.record("from"))
        return rows
