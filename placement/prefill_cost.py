"""The time of a prompt, which is computed in chunks.

Experts in host memory are multiplied there, or their weights are streamed to an accelerator while it computes,
whichever is faster for a chunk. In the last layer the CPU computes keys and values alone of tokens without wanted
logits; an accelerator leaves such tokens out after attention.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .decode_cost import Demands, add_head, add_start
from .expert_cost import NO_TIME, ExpertCost, ExpertTime
from .machine import Machine
from .placed import Placement, Traffic
from .shape import CPU, LayerShape
from .streaming import LEAST_TOKENS, Candidates, least_ms
from .times import Times

KEYS_AND_VALUES = ("k", "v")  # roles of what all tokens of a chunk need of the last layer
_ATTENTION = ("q", *KEYS_AND_VALUES, "o")
MOST_TOKENS = 4096  # of a chunk


def chunks_of(traffic: Traffic) -> Iterator[tuple[int, int]]:
    """First position and number of tokens of each."""
    for start in range(0, traffic.prompt, traffic.chunk):
        yield start, min(traffic.chunk, traffic.prompt - start)


class PrefillCost:
    """On a machine. demands: how a chunk's tokens fall on a layer's experts."""

    def __init__(self, machine: Machine, demands: Demands) -> None:
        self._machine, self._shape, self._demands = machine, machine.shape, demands

    def prompt(self, placement: Placement, traffic: Traffic, *, staging: bool) -> Times:
        """staging: whether an accelerator has room for a layer's experts that are streamed to it."""
        times = Times()
        for start, tokens in chunks_of(traffic):
            self._add_layers(times, placement, start, tokens, staging)
            self._add_last(times, placement, start, tokens, wanted=start + tokens == traffic.prompt)
            add_start(times, self._machine, placement.embed)
        return times

    def _add_layers(self, times: Times, placement: Placement, start: int, tokens: int, staging: bool) -> None:
        """All layers but the last."""
        machine, shape, at = self._machine, self._shape, placement.embed
        for number, layer in enumerate(shape.layers[:-1]):
            device = placement.dense[number]
            cost = machine.device(device)
            times.add("hops", machine.hop_ms(at, device, tokens))
            times.add("dense", cost.products_ms(layer.dense, tokens))
            times.add("attention", cost.prompt_ms(shape, layer, start, tokens))
            self._add_others(times, layer, device, tokens)
            times.add_experts(self.experts(number, device, placement.experts[number], tokens, staging=staging))
            at = device

    def _add_last(self, times: Times, placement: Placement, start: int, tokens: int, *, wanted: bool) -> None:
        """The last layer and the head; wanted: whether the chunk ends with the token whose logits are."""
        machine, number = self._machine, len(self._shape.layers) - 1
        layer, device = self._shape.layers[number], placement.dense[number]
        before = placement.dense[number - 1] if number else placement.embed
        cost = machine.device(device)
        times.add("hops", machine.hop_ms(before, device, tokens))
        needed = KEYS_AND_VALUES if device == CPU else _ATTENTION
        for_all = tuple(product for product in layer.dense if product.role in needed)
        times.add("dense", cost.products_ms(for_all, tokens))
        self._add_others(times, layer, device, tokens)
        if device != CPU:
            times.add("attention", cost.prompt_ms(self._shape, layer, start, tokens))
        elif wanted:
            times.add("attention", cost.context_ms(self._shape, layer, 1, start + tokens - 1))
        if wanted:
            others = tuple(product for product in layer.dense if product.role not in needed)
            times.add("dense", cost.products_ms(others, 1))
            times.add_experts(self.experts(number, device, placement.experts[number], 1, staging=False))
            times.add("hops", machine.hop_ms(device, placement.head, 1))
            add_head(times, machine, placement.head, 1)

    def _add_others(self, times: Times, layer: LayerShape, device: int, tokens: int) -> None:
        cost = self._machine.device(device)
        times.add("norms and sums", cost.values_ms(self._shape, tokens))
        times.add("calls", cost.ops_ms(layer))

    def experts(
        self, number: int, device: int, resident: NDArray[np.int8], tokens: int, *, staging: bool
    ) -> ExpertTime:
        """Of a chunk, with the dense part on `device`: as they lie, or streamed where that is faster."""
        if not len(resident):
            return NO_TIME
        streams = staging and tokens >= LEAST_TOKENS and bool((resident == CPU).any())
        cards = range(len(self._machine.accelerators) if streams else 0)
        layer, demand = self._shape.layers[number], self._demands(number, tokens)
        used = {int(each) for each in np.unique(resident)} | set(cards)
        cost = self._machine.experts(layer, demand, device, used)
        streamed = [self._streamed(layer, cost, device, resident, card) for card in cards]
        return min([cost.at(resident), *streamed], key=lambda time: time.mean_ms)

    def _streamed(
        self, layer: LayerShape, cost: ExpertCost, device: int, resident: NDArray[np.int8], card: int
    ) -> ExpertTime:
        """With at least one of the CPU's experts streamed to a card, and as many as are best."""
        demand = cost.demand
        order = demand.order[resident[demand.order] == CPU]
        least = least_ms(
            self._machine,
            layer,
            device,
            card,
            demand.tokens,
            Candidates(cost.mean_ms(card)[order], demand.touch[order], cost.tokens[order]),
        )
        count = 1 + int(np.argmin(np.maximum(cost.moved(resident, order, card), least)[1:]))
        moved = resident.copy()
        moved[order[:count]] = card
        return _not_before(cost.at(moved), least[count])

    def break_even(self, number: int, device: int) -> int:
        """The most tokens of a chunk for which the CPU is as fast with all the layer's experts as together with
        `device`, where the dense part is, and weights that are streamed to it; MOST_TOKENS if that is never slower."""
        least, most = LEAST_TOKENS - 1, LEAST_TOKENS
        while not self._streams(number, device, most):
            if most == MOST_TOKENS:
                return MOST_TOKENS
            least, most = most, 2 * most
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (least, middle) if self._streams(number, device, middle) else (middle, most)
        return least

    def _streams(self, number: int, device: int, tokens: int) -> bool:
        """Whether streaming wins."""
        layer = self._shape.layers[number]
        cost = self._machine.experts(layer, self._demands(number, tokens), device, {CPU, device})
        here = np.full(layer.num_experts, CPU, np.int8)
        return self._streamed(layer, cost, device, here, device).mean_ms < cost.at(here).mean_ms


def _not_before(time: ExpertTime, sent_ms: float) -> ExpertTime:
    """Computing goes on while weights come, but does not end before they have."""
    return replace(time, mean_ms=max(time.mean_ms, sent_ms))
