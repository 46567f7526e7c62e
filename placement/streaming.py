"""Streaming: which of the CPU's experts a chunk of a prompt brings to an accelerator, for itself alone.

Those with most tokens go, the tail stays on the CPU, and both are computed at once. They come in groups: while one is
computed the next is on its way, so what counts is the link, and the last group after it. The link reads the memory that
the CPU reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .device_cost import Floats
from .machine import Machine
from .shape import CPU, LayerShape

LEAST_TOKENS = 16  # that experts are streamed for: fewer read weights more than they compute, and so would the link
GROUP = 8  # experts that come together: enough that launches count little, few enough that the last is soon over


@dataclass(frozen=True, slots=True)
class Candidates:
    """The CPU's experts of a layer that may be streamed, the first of them first; float64 [n] each. there_ms: what they
    take on the card; touch: how probable it is that any token goes to them; tokens: how many do."""

    there_ms: Floats
    touch: Floats
    tokens: Floats


def least_ms(
    machine: Machine, layer: LayerShape, dense_device: int, card: int, tokens: int, candidates: Candidates
) -> Floats:
    """float64 [n + 1]: before so much time the experts of a chunk of so many tokens are not done, with the first 0 .. n
    of the candidates streamed as far as any token goes to them."""
    cost, count = machine.accelerators[card], np.arange(len(candidates.touch) + 1)
    sums = np.append(0.0, np.cumsum(candidates.there_ms))
    last = sums - sums[np.maximum(count - GROUP, 0)]
    way = machine.way_ms(layer, dense_device, card, tokens)
    came = np.append(0.0, np.cumsum(candidates.touch))
    left = candidates.tokens.sum() - np.append(0.0, np.cumsum(candidates.tokens))
    back = machine.hop_ms(CPU, card, 1) - machine.hop_ms(CPU, card, 0) if dense_device == card else 0.0
    summed = tokens * layer.top_k * machine.device(dense_device).sum_ms(machine.shape.hidden_size)
    link = way + came * cost.weights_ms(layer.expert_bytes) + left * back
    memory = machine.cpu.memory_ms(came[-1] * layer.expert_bytes)  # read by one or the other
    least: Floats = np.maximum(link + last + cost.call_ms + summed, memory)
    least[0] = 0.0
    return least


class Streaming:
    """Decides for a chunk whose choices are known."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def top_k(self, number: int) -> int:
        return self._machine.shape.layers[number].top_k

    def expert_bytes(self, number: int) -> int:
        return self._machine.shape.layers[number].expert_bytes

    def best(
        self, number: int, dense_device: int, cards: Sequence[int], counts: NDArray[np.int64], where: NDArray[np.int8]
    ) -> tuple[int, NDArray[np.int64]]:
        """The card, and the CPU's experts of a layer to be streamed to it, those with most tokens first; the CPU and
        none where that is as fast. counts: int64 [experts], tokens of each; where: int8 [experts], the device that each
        lies on."""
        cold = np.flatnonzero((where == CPU) & (counts > 0))
        order, none = cold[np.argsort(-counts[cold], kind="stable")], cold[:0]
        if not len(order):
            return CPU, none
        best_ms, best = np.inf, (CPU, none)
        for card in cards:
            times = self._times(number, dense_device, card, counts, where, order)
            count = int(np.argmin(times))
            if times[count] < min(best_ms, times[0]):
                best_ms, best = times[count], (card, order[:count])
        return best

    def _times(
        self,
        number: int,
        dense_device: int,
        card: int,
        counts: NDArray[np.int64],
        where: NDArray[np.int8],
        order: NDArray[np.int64],
    ) -> Floats:
        """float64 [n + 1]: milliseconds of the layer's experts with the first 0 .. n of `order`, n of the CPU's that
        are touched, on the card."""
        layer = self._machine.shape.layers[number]
        tokens, most = int(counts.sum()) // layer.top_k, int(counts.max())
        longest = least_ms(
            self._machine,
            layer,
            dense_device,
            card,
            tokens,
            Candidates(
                self._machine.expert_ms(layer, dense_device, card, most)[counts[order]],
                np.ones(len(order)),
                counts[order].astype(np.float64),
            ),
        )
        for device in {CPU, card, *(int(each) for each in np.unique(where[counts > 0]))}:
            table = self._machine.expert_ms(layer, dense_device, device, most)
            own = np.full(len(order) + 1, table[counts[where == device]].sum())
            own[1:] += np.cumsum(table[counts[order]]) * (float(device == card) - float(device == CPU))
            taken = np.arange(len(order) + 1) < len(order) if device == CPU else own > 0
            once = self._machine.device(device).call_ms + self._machine.way_ms(layer, dense_device, device, tokens)
            longest = np.maximum(longest, np.where(taken, own + once, 0.0))
        return longest
