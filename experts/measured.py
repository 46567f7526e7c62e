"""Parts of a layer that can be measured by themselves: products from memory or from cache, and experts.

The weights are random. Where they are to come from memory there are more of them than any cache holds, run in turn.
"""

import numpy as np

from ..cpu_kernels.descriptor import N_TOKENS
from ..cpu_kernels.layout import packed_bytes
from ..cpu_kernels.program import FrozenProgram
from ..cpu_kernels.rope import STEP as HEAD_STEP
from ..cpu_kernels.seating import Seating
from .cpu_ops import CpuOps
from .random_model import random_model
from .random_weights import FAR
from .spec import RoutingSpec
from .step_inputs import StepInputs
from .synthetic import feed_ops, ops_of, part_spec

_PROJECTIONS = 3  # products of a layer, side by side as q, k and v
_NEAR = 1 << 25  # bytes that a program takes from cache, again and again
_FAR_LAYERS, _NEAR_LAYERS = 2, 8  # of experts, in a program
TOUCHED = 8  # experts at a time, where weights come from memory
_MOST_TOKENS = 64


class Measured:
    """A program over a number of layers; `counts` is what it runs for."""

    program: FrozenProgram
    layers: int

    def __init__(self, ops: CpuOps, inputs: StepInputs) -> None:
        self._ops, self.counts = ops, inputs.counts  # the program holds addresses of both

    def set_tokens(self, count: int) -> None:
        self.counts[N_TOKENS] = count


class MeasuredProducts(Measured):
    """Products [rows, columns] of one kind, three to a layer. far: weights come from memory; else one layer's are
    there, run after run. nbytes: of the weights that the program multiplies, `layers` times a layer's.
    """

    def __init__(self, kind: str, rows: int, columns: int, tokens: int, seating: Seating, *, far: bool) -> None:
        layer_bytes = _PROJECTIONS * packed_bytes(kind, rows, columns)
        distinct = -(-FAR // layer_bytes) if far else 1
        self.layers = distinct if far else max(1, _NEAR // layer_bytes)
        self.nbytes = self.layers * layer_bytes
        heads = rows // HEAD_STEP
        spec = part_spec(num_layers=distinct, hidden_size=columns, num_heads=heads, num_kv_heads=heads)
        shapes = {f"layers.{layer}.{name}": (rows, columns) for layer in range(distinct) for name in "qkv"}
        super().__init__(*ops_of(spec, random_model(shapes, lambda _: kind, seating), tokens, seating.threads))
        for run in range(self.layers):
            self._ops.project(run % distinct)
        self.program = self._ops.program()
        feed_ops(self._ops, np.random.default_rng(0).standard_normal((tokens, columns), np.float32))


class MeasuredExperts(Measured):
    """The expert part of MoE layers, as in `synthetic.MoeLayers`.

    far: weights come from memory, if each run touches the next ones; else one layer's are there, run after run.
    """

    def __init__(self, kind: str, experts: int, sizes: tuple[int, int], seating: Seating, *, far: bool) -> None:
        """sizes: of a token, and of what is within an expert."""
        hidden, inner = sizes
        self.experts, self.layers, distinct = experts, _FAR_LAYERS if far else _NEAR_LAYERS, _FAR_LAYERS if far else 1
        self.expert_bytes = 2 * packed_bytes(kind, inner, hidden) + packed_bytes(kind, hidden, inner)
        spec = part_spec(
            num_layers=distinct,
            hidden_size=hidden,
            routing=RoutingSpec(num_experts=experts, top_k=1),
            moe_intermediate_size=inner,
        )
        rows = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        shapes = {
            f"layers.{layer}.experts.{part}": (experts, *shape)
            for layer in range(distinct)
            for part, shape in rows.items()
        }
        super().__init__(*ops_of(spec, random_model(shapes, lambda _: kind, seating), _MOST_TOKENS, seating.threads))
        for run in range(self.layers):
            self._ops.group(run % distinct)
            self._ops.feed_forward(run % distinct, "experts", together=False)
            self._ops.project_down(run % distinct, "experts")
        self.program = self._ops.program()
        feed_ops(self._ops, np.random.default_rng(0).standard_normal((_MOST_TOKENS, hidden), np.float32))

    @classmethod
    def from_memory(cls, kind: str, sizes: tuple[int, int], seating: Seating) -> "MeasuredExperts":
        """So many of them that no cache holds all."""
        one = 2 * packed_bytes(kind, sizes[1], sizes[0]) + packed_bytes(kind, *sizes)
        return cls(kind, max(2, -(-FAR // (_FAR_LAYERS * one * TOUCHED))) * TOUCHED, sizes, seating, far=True)

    def route(self, first: int, count: int, tokens: int) -> None:
        """Send so many tokens to each of `count` experts from `first` on; after the last comes the first."""
        ids = np.repeat((first + np.arange(count)) % self.experts, tokens)
        routes = self._ops.buffers.branches["experts"].routes
        routes.ids[:, : ids.size], routes.weights[:, : ids.size] = ids, 1
        self.set_tokens(ids.size)
