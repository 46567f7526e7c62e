"""DeviceChoices: the experts that a step's tokens chose in the layers of one accelerator, and how much each counts.

They stay there until the step is over, so that a layer whose experts are all there tells the host nothing; then one
copy brings those of all layers.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ..gpu_kernels.device import Accelerator
from .buffers import Routes
from .device_memory import DeviceMemory

_LINE = 16  # int32 of a cache line: parts begin on one


class DeviceChoices:
    """Of `layers`, whose numbers among all layers with experts are `numbers`, in memory that is taken from `memory`.

    tokens: of the largest step.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        memory: DeviceMemory,
        tokens: int,
        top_k: int,
        layers: Sequence[int],
        numbers: Sequence[int],
    ) -> None:
        self._accelerator, self._top_k = accelerator, top_k
        self._rows = {layer: row for row, layer in enumerate(layers)}
        self._numbers = np.array(numbers, np.int64)
        size = 2 * len(layers) * _lines(tokens * top_k)
        self._there, self._here = memory.empty((size,), torch.int32), accelerator.pinned((size,), torch.int32)
        self._part = 0

    def begin(self, rows: int) -> None:
        """A step begins whose launches are made for so many rows."""
        self._part = _lines(rows * self._top_k)

    def ids(self, layer: int, rows: int) -> torch.Tensor:
        """int32 [rows, top_k]"""
        return self._of(2 * self._rows[layer], rows)

    def weights(self, layer: int, rows: int) -> torch.Tensor:
        """float32 [rows, top_k]"""
        return self._of(2 * self._rows[layer] + 1, rows).view(torch.float32)

    def _of(self, number: int, rows: int) -> torch.Tensor:
        first = number * self._part
        return self._there[first : first + rows * self._top_k].view(rows, self._top_k)

    def fetch(self) -> None:
        """Queue the copy of all that there are."""
        size = 2 * len(self._rows) * self._part
        if size:
            self._accelerator.copy(self._here[:size], self._there[:size], "from")

    def take(self, routes: Routes, tokens: int, wanted: int, last: int) -> None:
        """Write what was fetched to where the choices of all layers are: of so many tokens, but in layer `last` only of
        those whose logits are wanted."""
        if not self._rows:
            return
        here = self._here[: 2 * len(self._rows) * self._part].view(-1, 2, self._part).numpy()
        whole = len(self._rows) - (last in self._rows)
        for rows, count in ((slice(whole), tokens), (slice(whole, None), wanted)):
            pairs, numbers = count * self._top_k, self._numbers[rows]
            routes.ids[numbers, :pairs] = here[rows, 0, :pairs]
            routes.weights[numbers, :pairs] = here[rows, 1, :pairs].view(np.float32)


def _lines(size: int) -> int:
    """So many int32 in whole lines."""
    return -(-size // _LINE) * _LINE
