"""Streams: the experts that a chunk of a prompt brings to accelerators, layer by layer, by the cost model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..gpu_kernels.device import DeviceError
from ..placement.machine import Machine
from ..placement.placed import Placement
from ..placement.shape import CPU
from ..placement.streaming import LEAST_TOKENS, Streaming
from .errors import DeviceFullError
from .pack import PackedWeights
from .residency import Residency
from .staging import Group, Staging, groups_of

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Streamed:
    """Experts on their way to a card, in groups. lies: int8 [pairs], the device that computes each pair."""

    card: int
    groups: Sequence[Group]
    lies: NDArray[np.int8]

    def order(self, pairs: Indices, ids: Indices) -> Indices:
        """Pairs of the card: first those that lie there, then those of each group in turn."""
        turn = np.zeros(int(ids.max(initial=0)) + 1, np.int64)
        for number, group in enumerate(self.groups, 1):
            turn[list(group)] = number
        return pairs[np.argsort(turn[ids[pairs]], kind="stable")]


class Streams:
    """cards: by their number, those with staging. bytes_streamed: of weights, since the start."""

    def __init__(self, streaming: Streaming, residency: Residency, cards: dict[int, Staging]) -> None:
        self.cards, self.bytes_streamed = cards, 0
        self._streaming, self._residency = streaming, residency

    @classmethod
    def of(
        cls,
        machine: Machine,
        weights: PackedWeights,
        residency: Residency,
        placement: Placement,
        note: Callable[[str, str], None] | None,
    ) -> "Streams":
        """With staging on each accelerator that has room for it."""
        sizes = [len(experts) for experts in placement.experts]
        layers, cards = [layer for layer, size in enumerate(sizes) if size], {}
        for number, accelerator in enumerate(residency.accelerators):
            try:
                cards[number] = Staging(accelerator, weights, layers, max(sizes))
            except (DeviceFullError, DeviceError) as error:
                if note:
                    note("streaming_off", f"{error}; the CPU computes what of prompts is not on {accelerator.name}")
        return cls(Streaming(machine), residency, cards)

    def drop(self, card: int) -> None:
        """Give back the memory of an accelerator, which may have failed."""
        staging = self.cards.pop(card, None)
        if staging:
            staging.close()

    def choose(self, layer: int, dense_device: int, ids: Indices) -> Streamed:
        """ids: int64 [pairs], the step's choices. A layer that has its dense part on a card streams to that one."""
        where, tokens = self._residency.where[layer], len(ids) // self._streaming.top_k(layer)
        if tokens < LEAST_TOKENS:
            return Streamed(CPU, (), where[ids])
        cards = [card for card in self.cards if dense_device in (CPU, card)]
        counts = np.bincount(ids, minlength=len(where))
        card, experts = self._streaming.best(layer, dense_device, cards, counts, where)
        self.bytes_streamed += len(experts) * self._streaming.expert_bytes(layer)
        lies = where[ids]
        lies[np.isin(ids, experts)] = card
        return Streamed(card, groups_of(experts.tolist()), lies)
