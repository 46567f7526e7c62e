"""Layers without a model file, and the programs that run them, for measurements.

Kernels are measured with weights from memory, so a layer is there in several copies, which the program runs in turn.
"""

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import N_TOKENS
from ..cpu_kernels.layout import RECORDS, packed_bytes, padded, record_bytes
from ..cpu_kernels.norm import quantise_row, round_row
from ..cpu_kernels.rope import STEP as HEAD_STEP
from .cpu_ops import CpuOps
from .formats import FORMATS, Floats
from .kv_store import KvStore
from .memory import arena
from .pack import PackedMatrix, PackedWeights
from .progress import Progress
from .random_weights import FAR, MoeShape, fill_anyhow, moe_weights
from .spec import ModelSpec, RopeSpec, RoutingSpec
from .step_inputs import StepInputs, StepLimits

Indices = NDArray[np.int64]


class MoeLayers:
    """The expert part of MoE layers: group, gate, up, silu, down, weighted combine, from quantised activations on.

    All copies hold the same weights. `program` runs every copy once, for `counts`; each adds its output to x.
    """

    def __init__(self, shape: MoeShape, name: str, tokens: int, threads: int, progress: Progress) -> None:
        kind = FORMATS[name].packed
        self.shape, self.copies = shape, shape.copies(kind)
        spec = part_spec(
            num_layers=self.copies,
            hidden_size=shape.hidden,
            routing=RoutingSpec(num_experts=shape.experts, top_k=shape.active),
            moe_intermediate_size=shape.intermediate,
        )
        weights = moe_weights(shape, name, self.copies, progress)
        progress("compiling kernels", 0, 1)
        self._ops, inputs = ops_of(spec, weights, tokens, threads)
        self.counts = inputs.counts
        for layer in range(self.copies):
            self._ops.group("experts")
            self._ops.feed_forward(layer, "experts", together=False)
            self._ops.project_down(layer, "experts")
        self.program = self._ops.program()
        progress("compiling kernels", 1, 1)

    def feed(self, x: Floats) -> None:
        """Set the input of all layers, float32 [tokens, hidden]."""
        feed_ops(self._ops, x)

    def set_routes(self, ids: Indices, weights: Floats) -> None:
        """Set the number of tokens, their experts and the weights of these, both [tokens, active]."""
        routes = self._ops.buffers.branches["experts"].routes
        self.counts[N_TOKENS] = len(ids)
        routes.ids[: ids.size] = ids.ravel()
        routes.weights[: weights.size] = weights.ravel()

    def clear(self) -> None:
        """Set x to zero."""
        self._ops.buffers.x[:] = 0

    def output(self, token: int) -> Floats:
        """One layer's output for a token since `clear`, if the program ran once: float32 [hidden]."""
        row: Floats = self._ops.buffers.x[token].view(np.float32)[: self.shape.hidden]
        return row / np.float32(self.copies)  # every copy has added the same


class ProductLayers:
    """`products` linear layers of one shape, three to a layer as q, k and v of a model, with weights from memory."""

    def __init__(self, kind: str, rows: int, columns: int, tokens: int, threads: int) -> None:
        self.matrix_bytes = packed_bytes(kind, rows, columns)
        layers = -(-FAR // (3 * self.matrix_bytes))
        self.products = 3 * layers
        heads = rows // HEAD_STEP
        spec = part_spec(num_layers=layers, hidden_size=columns, num_heads=heads, num_kv_heads=heads)
        weights = PackedWeights(arena(self.products * self.matrix_bytes))
        places = weights.arena.reshape(self.products, -1)
        fill_anyhow(kind, rows, columns, places[0])
        places[1:] = places[0]
        for i, place in enumerate(places):
            role = f"layers.{i // 3}.{'qkv'[i % 3]}"
            weights.matrices[role] = PackedMatrix(kind, rows, columns, place.ctypes.data)
        self._ops, inputs = ops_of(spec, weights, tokens, threads)
        self.counts = inputs.counts
        for layer in range(layers):
            self._ops.project(layer)
        self.program = self._ops.program()
        feed_ops(self._ops, np.random.default_rng(0).standard_normal((tokens, columns), np.float32))

    @staticmethod
    def needed_bytes(kind: str, rows: int, columns: int, tokens: int) -> int:
        """Memory that such layers take."""
        widths = 3 * 4 * padded(rows) + 4 * sum(record_bytes(columns, record) for record in RECORDS)
        return FAR + 3 * packed_bytes(kind, rows, columns) + tokens * widths + 8 * rows * columns


def part_spec(
    *,
    num_layers: int,
    hidden_size: int,
    num_heads: int = 1,
    num_kv_heads: int = 1,
    routing: RoutingSpec | None = None,
    moe_intermediate_size: int = 0,
) -> ModelSpec:
    """A model whose parts that are not measured are as small as can be."""
    return ModelSpec(
        architecture="synthetic",
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=HEAD_STEP,
        rms_eps=1e-6,
        rope=RopeSpec(inverse_frequencies=(1.0,)),
        max_context=1,
        moe_layers=(routing is not None,) * num_layers,
        routing=routing,
        moe_intermediate_size=moe_intermediate_size,
    )


def ops_of(spec: ModelSpec, weights: PackedWeights, tokens: int, threads: int) -> tuple[CpuOps, StepInputs]:
    inputs = StepInputs(StepLimits(tokens, 1, 1))
    return CpuOps(spec, weights, inputs, KvStore(spec, 1, "f32"), threads), inputs


def feed_ops(ops: CpuOps, x: Floats) -> None:
    """Fill the normed activations, in all forms, with the rows of x."""
    normed = ops.buffers.normed
    normed.plain.view(np.float32)[: len(x), : x.shape[1]] = x
    for row in range(len(x)):
        plain, bfloat, codes = (normed.forms[record][row].ctypes.data for record in RECORDS)
        round_row(plain, x.shape[1], bfloat)
        quantise_row(plain, x.shape[1], codes)
