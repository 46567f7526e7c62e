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
from .hot_pairs import HotPairs
from .residency import Residency
from .segment import Segment
from .streaming import Streaming

Indices = NDArray[np.int64]


class SplitMixture:
    """A layer. beside: what else the CPU has to do that needs no expert; narrowed: whether only tokens whose logits are
    wanted are computed; streaming: an accelerator, and what brings experts to it for a step."""

    def __init__(
        self,
        layer: int,
        cold: ColdPairs,
        devices: Mapping[int, DeviceExperts],
        residency: Residency,
        *,
        beside: Segment | None,
        narrowed: bool,
        streaming: tuple[int, Streaming] | None = None,
    ) -> None:
        self._layer, self._cold, self._devices, self._residency = layer, cold, devices, residency
        self._beside, self._streaming = beside, streaming
        self._count_slot = N_LOGITS if narrowed else N_TOKENS

    def run(self, counts: Indices) -> None:
        tokens = int(counts[self._count_slot])
        ids = self._cold.choices(tokens)
        lies = self._residency.where[self._layer][ids]
        streamed = self._stream(ids, lies, tokens)
        cold = self._cold.show(ids, lies)
        events = self._start(ids, tokens, cold, streamed) if cold < len(ids) else []
        if self._beside:
            self._beside.run()
        if cold:
            self._cold.segment.run()
        for device, event in events:
            self._residency.accelerators[device].synchronise(event)

    def _stream(self, ids: Indices, lies: NDArray[np.int8], tokens: int) -> Sequence[int]:
        """Cold experts that are brought to the accelerator that streams; from now on their pairs lie there."""
        device, streaming = self._streaming or (CPU, None)
        if streaming is None:
            return ()
        experts = streaming.chosen(self._layer, tokens, ids[lies == CPU])
        lies[np.isin(ids, experts)] = device
        return experts

    def _start(self, ids: Indices, tokens: int, first: int, streamed: Sequence[int]) -> Sequence[tuple[int, Event]]:
        """Send the hot pairs off; their outputs will lie from row `first` on. An event for each accelerator."""
        events, routes = [], self._cold.routes
        for device, experts in self._devices.items():
            hot = self._hot(device, ids, streamed)
            pairs = hot.pairs
            if not len(pairs):
                continue
            last = first + len(pairs)
            routes.position[pairs] = np.arange(first, last)
            rows, out = pairs // routes.top_k, self._cold.outs[first:last]
            event = experts.start(self._layer, tokens, rows, ids[pairs], hot.sizes, hot.banks(), out)
            events.append((device, event))
            first = last
        return events

    def _hot(self, device: int, ids: Indices, streamed: Sequence[int]) -> HotPairs:
        bank = self._residency.bank(self._layer, device)
        here = self._residency.where[self._layer][ids] == device
        hot = HotPairs(self._layer, bank, np.flatnonzero(here))
        if self._streaming and self._streaming[0] == device and streamed:
            hot.stream(self._streaming[1], streamed, ids)
        return hot
