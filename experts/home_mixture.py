"""HomeMixture: the experts of a layer whose dense part is an accelerator's, computed where each of them lies.

That accelerator has routed and computes the experts that it has itself, of which the host need not know. Where all
lie there, nothing leaves it before the step is over. Else it sends the choices and what is normed to the host, which
has the other pairs computed by the CPU team and by other accelerators, and sends their outputs back, to be added up in
the order of choices.
"""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ..gpu_kernels.device import Event
from . import device_costs as costs
from .buffers import Rows
from .cold_pairs import ColdPairs
from .device_experts import DeviceExperts
from .device_ops import DeviceOps
from .residency import Residency
from .schedule import Step
from .segment import Segment
from .streams import Streams

Indices = NDArray[np.int64]


class HomeMixture:
    """A layer on accelerator `home`, whose ops are `ops`. normed: the host's buffer of what is normed, from which
    `records` makes the records that experts of other devices read; streams: where experts may be streamed."""

    def __init__(
        self,
        layer: int,
        home: int,
        ops: DeviceOps,
        others: Mapping[int, DeviceExperts],
        residency: Residency,
        *,
        cold: ColdPairs,
        normed: Rows,
        records: Segment | None,
        streams: Streams | None = None,
    ) -> None:
        self._layer, self._home, self._ops, self._residency = layer, home, ops, residency
        self._others = {number: device for number, device in others.items() if number != home}
        self._cold, self._records, self._streams = cold, records, streams
        self._normed = torch.from_numpy(normed.plain).view(torch.float32)
        pairs, accelerator = len(cold.shown), ops.accelerator
        self._ids = accelerator.pinned((pairs,), torch.int32)
        self._pairs = accelerator.pinned((pairs,), torch.int64)
        self._fetched: Event | None = None

    def steps(self) -> Iterator[Step]:
        """The host has a part only where something is computed elsewhere."""
        yield Step(self._fetch, needed=self._is_split)
        yield Step(self._own, self._ops, needed=self._has_own)
        yield Step(self._add_others, needed=self._is_split)
        yield Step(partial(self._ops.add_experts, self._layer), self._ops)

    def _is_split(self) -> bool:
        """Whether experts are elsewhere than the layer's dense part."""
        return bool((self._residency.where[self._layer] != self._home).any())

    def _has_own(self) -> bool:
        return bool((self._residency.where[self._layer] == self._home).any())

    def _fetch(self) -> None:
        """Send the host what it needs."""
        ops, rows = self._ops, self._ops.rows
        accelerator, ids = ops.accelerator, ops.choices.ids(self._layer, rows).view(-1)
        if rows:
            accelerator.wait("from", accelerator.record("compute"))
            accelerator.copy(self._ids[: len(ids)], ids, "from")
            accelerator.copy(self._normed[:rows], ops.buffers.normed.plain[:rows], "from")
            self._fetched = accelerator.record("from")

    def _own(self) -> None:
        """Queue what is computed here."""
        bank = self._residency.bank(self._layer, self._home)
        assert bank is not None
        self._ops.experts(self._layer, bank.matrices, bank.table)

    def _add_others(self) -> None:
        """Have what is elsewhere computed, and send for it."""
        rows, cold = self._ops.rows, self._cold
        if rows:
            self._ops.accelerator.synchronise(self._fetched)
            pairs = rows * cold.routes.top_k
            cold.routes.ids[cold.choice, :pairs] = self._ids[:pairs].numpy()
            self._send(self._compute(rows))

    def _compute(self, tokens: int) -> Indices:
        """Have the pairs of other devices computed: their numbers, in the order of their outputs."""
        cold, ids = self._cold, self._cold.choices(tokens)
        lies = self._stream(ids) if self._streams else self._residency.where[self._layer][ids]
        last = cold.show(ids, lies)
        pairs, events = [cold.routes.order[:last]], []  # that order is still to come
        if self._records and (lies != self._home).any():
            self._records.run()
        for device, experts in self._others.items():
            here, bank = np.flatnonzero(lies == device), self._residency.bank(self._layer, device)
            if not len(here) or bank is None:
                continue
            first, last = last, last + len(here)
            rows, out = here // cold.routes.top_k, cold.outs[first:last]
            events.append((device, experts.start(self._layer, bank, tokens, rows, ids[here], out)))
            pairs.append(here)
        if len(pairs[0]):
            cold.segment.run()
        for device, event in events:
            self._residency.accelerators[device].synchronise(event)
        return np.concatenate(pairs)

    def _stream(self, ids: Indices) -> NDArray[np.int8]:
        """Have experts streamed here where that pays; int8 [pairs], the device of each."""
        assert self._streams is not None
        streamed = self._streams.choose(self._layer, self._home, ids)
        if streamed.groups:
            staging = self._streams.cards[self._home]
            for group, table in zip(streamed.groups, staging.announce(streamed.groups), strict=True):
                self._ops.experts(self._layer, staging.bring(self._layer, group), table)
                staging.leave()
        return streamed.lies

    def _send(self, pairs: Indices) -> None:
        """Bring the outputs of these pairs, which lie in their order, to where those of all are."""
        n, buffers, accelerator = len(pairs), self._ops.buffers, self._ops.accelerator
        if not n:
            return
        self._pairs[:n].numpy()[:] = pairs
        accelerator.copy(buffers.landed_pairs[:n], self._pairs[:n], "to")
        accelerator.copy(buffers.landed[:n], self._cold.outs[:n], "to")
        accelerator.wait("compute", accelerator.record("to"))
        place = partial(buffers.outs.index_copy_, 0, buffers.landed_pairs[:n], buffers.landed[:n])
        accelerator.launch(place, costs.values(n, buffers.outs.shape[1]))
