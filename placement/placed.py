"""Where a model's parts lie, what traffic it serves, and what speed is predicted of that."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .shape import CPU, ModelShape


@dataclass(slots=True, kw_only=True)
class Placement:
    """The device of each part: CPU or the number of an accelerator.

    dense: of each layer's dense part, its attention and its keys and values. experts: per layer int8 [num_experts], no
    elements for a dense layer.
    """

    dense: tuple[int, ...]
    experts: tuple[NDArray[np.int8], ...]
    embed: int
    head: int

    @classmethod
    def on_cpu(cls, shape: ModelShape) -> Self:
        experts = tuple(np.full(layer.num_experts, CPU, np.int8) for layer in shape.layers)
        return cls(dense=(CPU,) * len(shape.layers), experts=experts, embed=CPU, head=CPU)

    def without(self, devices: Collection[int]) -> "Placement":
        """The same with what lies on these devices on the CPU."""
        embed, head, *dense = (CPU if at in devices else at for at in (self.embed, self.head, *self.dense))
        gone = np.array(sorted(devices), np.int8)
        experts = tuple(np.where(np.isin(own, gone), np.int8(CPU), own) for own in self.experts)
        return Placement(dense=tuple(dense), experts=experts, embed=embed, head=head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """streams: how many decode together. context: positions in the cache of each while it decodes. prompt: tokens of a
    prompt, computed `chunk` tokens a step."""

    streams: int = 1
    context: int = 512
    prompt: int = 512
    chunk: int = 512

    def __post_init__(self) -> None:
        for name in ("streams", "prompt", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.context < 0:
            raise ValueError(f"context is {self.context}; it must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """value: tokens a second of all streams together, low .. high: where nine in ten measurements should lie. step_ms:
    of a decode step, or of a whole prompt. parts_ms: where that time goes; what overlaps counts once."""

    value: float
    low: float
    high: float
    step_ms: float
    parts_ms: dict[str, float]
