"""SplitMixture: the experts of a layer whose dense part is the CPU's, computed where each of them lies.

The CPU's router has chosen. Pairs (token, choice) whose expert is on an accelerator are hot, the others cold. Hot ones
are sent off, the CPU computes the cold ones meanwhile, and when all are back their outputs lie side by side in the
buffer that `combine` adds up from, in the order of choices: which device computed a row changes nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from ..gpu_kernels.device import Event
from ..placement.shape import CPU
from .cold_pairs import ColdPairs
from .device_experts import DeviceExperts
from .residency import Residency
from .segment import Segment
from .streams import Streamed, Streams

Indices = NDArray[np.int64]


class SplitMixture:
    """A layer. beside: what else the CPU has to do that needs no expert; narrowed: whether only tokens whose logits are
    wanted are computed; streams: where experts may be streamed."""

    def __init__(
        self,
        layer: int,
        cold: ColdPairs,
        devices: Mapping[int, DeviceExperts],
        residency: Residency,
        *,
        beside: Segment | None,
        narrowed: bool,
        streams: Streams | None = None,
    ) -> None:
        self._layer, self._cold, self._devices, self._residency = layer, cold, devices, residency
        self._beside, self._streams = beside, streams
        self._count_slot = N_LOGITS if narrowed else N_TOKENS

    def run(self, counts: Indices) -> None:
        tokens = int(counts[self._count_slot])
        ids = self._cold.choices(tokens)
        streamed = self._streams.choose(self._layer, CPU, ids) if self._streams else None
        lies = streamed.lies if streamed else self._residency.where[self._layer][ids]
        cold = self._cold.show(ids, lies)
        events = self._start(lies, ids, tokens, cold, streamed) if cold < len(ids) else []
        if self._beside:
            self._beside.run()
        if cold:
            self._cold.segment.run()
        for device, event in events:
            self._residency.accelerators[device].synchronise(event)

    def _start(
        self, lies: NDArray[np.int8], ids: Indices, tokens: int, first: int, streamed: Streamed | None
    ) -> Sequence[tuple[int, Event]]:
        """Send the hot pairs off; their outputs will lie from row `first` on. An event for each accelerator."""
        events, routes = [], self._cold.routes
        for device, experts in self._devices.items():
            pairs = np.flatnonzero(lies == device)
            bank = self._residency.bank(self._layer, device)
            groups = streamed.groups if streamed and streamed.card == device else ()
            if not len(pairs) or (bank is None and not groups):
                continue
            if streamed and groups:
                pairs = streamed.order(pairs, ids)
            last = first + len(pairs)
            routes.position[pairs] = np.arange(first, last)
            rows, out = pairs // routes.top_k, self._cold.outs[first:last]
            events.append((device, experts.start(self._layer, bank, tokens, rows, ids[pairs], out, groups)))
            first = last
        return events
