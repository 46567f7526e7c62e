"""SplitMixture: the experts of a layer whose dense part is the CPU's, computed where each of them lies.

The CPU's router has chosen. Pairs (token, choice) whose expert is on an accelerator are hot, the others cold. Hot ones
are sent off, the CPU computes the cold ones meanwhile, and when all are back their outputs lie side by side in the
buffer that `combine` adds up from, in the order of choices: which device computed a row changes nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from ..gpu_kernels.device import Event
from ..placement.shape import CPU
from .buffers import Branch
from .device_experts import DeviceExperts
from .residency import Residency
from .segment import Segment

Indices = NDArray[np.int64]


class SplitMixture:
    """A layer. ids: int64 [pairs], its choices; shown: int64 [pairs], those of cold pairs as the segment `cold` reads
    them; beside: what else the CPU has to do that needs none of them."""

    def __init__(
        self,
        layer: int,
        branch: Branch,
        shown: Indices,
        devices: Mapping[int, DeviceExperts],
        residency: Residency,
        *,
        ids: Indices,
        cold: Segment,
        beside: Segment | None,
        narrowed: bool,
    ) -> None:
        self._layer, self._routes, self._ids, self._shown = layer, branch.routes, ids, shown
        self._outs = torch.from_numpy(branch.outs).view(torch.float32)
        self._devices, self._residency = devices, residency
        self._cold, self._beside = cold, beside
        self._count_slot = N_LOGITS if narrowed else N_TOKENS

    def run(self, counts: Indices) -> None:
        top_k, tokens = self._routes.top_k, int(counts[self._count_slot])
        pairs = tokens * top_k
        ids = self._ids[:pairs]
        lies = self._residency.where[self._layer][ids]
        hot = lies != CPU
        cold = pairs - int(np.count_nonzero(hot))
        self._shown[:pairs] = np.where(hot, self._routes.num_experts, ids)
        events = self._start(lies, ids, tokens, cold) if cold < pairs else []
        if self._beside:
            self._beside.run()
        if cold:
            self._cold.run()
        for device, event in events:
            self._residency.accelerators[device].synchronise(event)

    def _start(self, lies: NDArray[np.int8], ids: Indices, tokens: int, first: int) -> Sequence[tuple[int, Event]]:
        """Send the hot pairs off; their outputs will lie from row `first` on. An event for each accelerator."""
        events = []
        for device, experts in self._devices.items():
            pairs = np.flatnonzero(lies == device)
            bank = self._residency.bank(self._layer, device)
            if not len(pairs) or bank is None:
                continue
            last = first + len(pairs)
            self._routes.position[pairs] = np.arange(first, last)
            rows, out = pairs // self._routes.top_k, self._outs[first:last]
            events.append((device, experts.start(self._layer, bank, tokens, rows, ids[pairs], out)))
            first = last
        return events
