"""HostCost: how long the CPU team should take for a stretch of a step, by a hardware profile: for a modelled clock.

It is what `placement` predicts of the CPU, for the tokens and choices that a step really has.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import N_HEAD, N_LOGITS, N_TOKENS
from ..placement.cpu_cost import CpuCost
from ..placement.device_cost import Slower
from ..placement.hardware import CpuProfile
from ..placement.prefill_cost import KEYS_AND_VALUES
from ..placement.shape import ModelShape
from .step_inputs import StepInputs

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """What a stretch of a step does: the dense part of a layer, its experts by the choices `ids` (numbers from
    num_experts on are not there), the head, or what there is before and after all ops. narrowed: only for tokens whose
    logits are wanted."""

    what: Literal["dense", "experts", "head", "step"]
    layer: int = 0
    ids: Indices | None = None
    narrowed: bool = False


class HostCost:
    """shape: of the model; cpu: the profile of the machine that is modelled."""

    def __init__(self, shape: ModelShape, cpu: CpuProfile) -> None:
        self._shape, self._cpu = shape, CpuCost(cpu, Slower())
        self._copied_gb_s = cpu.read_gb_s[min(cpu.read_gb_s)].value / 2  # each byte is read and written

    def seconds(self, parts: Iterable[Part], inputs: StepInputs) -> float:
        return sum(self._part_ms(part, inputs) for part in parts) / 1e3

    def copy_seconds(self, nbytes: int) -> float:
        """One thread copies within RAM."""
        return nbytes / self._copied_gb_s / 1e9

    def _part_ms(self, part: Part, inputs: StepInputs) -> float:
        tokens = int(inputs.counts[N_LOGITS if part.narrowed else N_TOKENS])
        if part.what == "step":
            return self._cpu.step_ms
        if part.what == "head":
            return self._cpu.products_ms((self._shape.head,), int(inputs.counts[N_HEAD]))
        if part.what == "experts":
            return self._experts_ms(part, tokens)
        layer, every = self._shape.layers[part.layer], int(inputs.counts[N_TOKENS])
        fixed = self._cpu.values_ms(self._shape, every) + self._cpu.ops_ms(layer)
        if not part.narrowed:
            return self._cpu.products_ms(layer.dense, tokens) + fixed + self._attention_ms(part.layer, inputs, every)
        for_all = tuple(product for product in layer.dense if product.role in KEYS_AND_VALUES)
        others = tuple(product for product in layer.dense if product.role not in KEYS_AND_VALUES)
        products = self._cpu.products_ms(for_all, every) + self._cpu.products_ms(others, tokens)
        ends = inputs.positions[inputs.logit_rows[:tokens]].tolist()
        return products + fixed + sum(self._cpu.context_ms(self._shape, layer, 1, end) for end in ends)

    def _experts_ms(self, part: Part, tokens: int) -> float:
        layer = self._shape.layers[part.layer]
        assert part.ids is not None
        counts = np.bincount(part.ids[: tokens * layer.top_k], minlength=layer.num_experts)[: layer.num_experts]
        table = self._cpu.expert_ms(layer.expert, max(int(counts.max()), 1))
        return self._cpu.call_ms + float(table[counts].sum())

    def _attention_ms(self, number: int, inputs: StepInputs, tokens: int) -> float:
        layer, total = self._shape.layers[number], 0.0
        _, firsts, sizes = np.unique(inputs.sequence[:tokens], return_index=True, return_counts=True)
        for start, size in zip(inputs.positions[firsts].tolist(), sizes.tolist(), strict=True):
            if size == 1:
                total += self._cpu.context_ms(self._shape, layer, 1, start)
            else:
                total += self._cpu.prompt_ms(self._shape, layer, start, size)
        return total
