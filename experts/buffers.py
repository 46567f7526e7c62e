"""The memory that ops on the CPU pass values in: one set for all layers, sized for the largest step."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.attention import scratch_bytes
from ..cpu_kernels.attention_rows import part_bytes
from ..cpu_kernels.down import SCRATCH_BYTES as DOWN_BYTES
from ..cpu_kernels.layout import KINDS, RECORDS, Record, padded, record_bytes
from ..cpu_kernels.matmul import SCRATCH_BYTES
from .memory import aligned
from .spec import ModelSpec
from .step_inputs import StepLimits

Memory = Callable[[int, int], NDArray[np.uint8]]  # as `memory.aligned`


@dataclass(frozen=True, slots=True)
class Rows:
    """A buffer of rows in all forms of records: plain float32 and, if anything reads them so, the others."""

    forms: dict[Record, NDArray[np.uint8]]
    columns: int

    @classmethod
    def of(cls, rows: int, columns: int, memory: Memory = aligned) -> "Rows":
        return cls({record: memory(rows, record_bytes(columns, record)) for record in RECORDS}, columns)

    @property
    def plain(self) -> NDArray[np.uint8]:
        return self.forms["plain"]

    def read_by(self, kind: str) -> tuple[int, int]:
        """Address and row stride of the form that a matrix of `kind` multiplies."""
        form = self.forms[KINDS[kind].record]
        return form.ctypes.data, form.shape[1]


@dataclass(frozen=True, slots=True)
class Routes:
    """Which experts a branch's tokens go to; a dense branch has one expert for all.

    ids, weights: [MoE layers, pairs]: the choices of every layer are there until the next step, for those who count
    them. The rest is of the layer under way.
    """

    num_experts: int
    top_k: int
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    offsets: NDArray[np.int64]
    order: NDArray[np.int64]
    position: NDArray[np.int64]
    active: NDArray[np.int64]
    num_active: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: int, num_experts: int, top_k: int, layers: int = 1) -> "Routes":
        pairs = tokens * top_k
        index = (np.zeros(n, np.int64) for n in (num_experts + 1, pairs, pairs, num_experts, 1))
        offsets, order, position, active, num_active = index
        ids, weights = np.zeros((layers, pairs), np.int64), np.zeros((layers, pairs), np.float32)
        return cls(num_experts, top_k, ids, weights, offsets, order, position, active, num_active)


@dataclass(frozen=True, slots=True)
class Branch:
    """Buffers of one feed-forward branch: inner activations and outputs per (token, expert) pair."""

    routes: Routes
    inner: Rows
    outs: NDArray[np.uint8]


class Buffers:
    """x is the residual stream; everything else is scratch between two ops. Rows are tokens, or pairs in a branch.

    memory: gives what accelerators copy from or to: x, what is normed, the outputs of experts and logits.
    """

    def __init__(self, spec: ModelSpec, limits: StepLimits, threads: int, memory: Memory = aligned) -> None:
        tokens = limits.tokens
        self.x = memory(tokens, record_bytes(spec.hidden_size, "plain"))
        self.normed = Rows.of(tokens, spec.hidden_size, memory)
        self.q, self.k, self.v = (
            aligned(tokens, 4 * padded(size)) for size in (spec.q_size, spec.kv_size, spec.kv_size)
        )
        self.mixed = Rows.of(tokens, spec.q_size)
        self.logits = memory(limits.rows, 4 * padded(spec.vocab_size)).view(np.float32)
        self.branches = _branches(spec, tokens, memory)
        self.router_logits, self.gate_logits = (
            aligned(tokens, 4 * padded(n)) for n in (spec.routing.num_experts if spec.routing else 1, 1)
        )
        widest = max(spec.vocab_size, spec.q_size, spec.hidden_size, spec.routing.num_experts if spec.routing else 0)
        self.no_bias = aligned(1, 4 * padded(widest))
        self.scratch = aligned(threads, SCRATCH_BYTES)
        self.down_scratch = aligned(threads, DOWN_BYTES)
        self.attention_scratch = aligned(threads, scratch_bytes(spec.num_heads, spec.num_kv_heads))
        self.partials = aligned(limits.partials * spec.num_heads, part_bytes(spec.head_dim))
        self.finished = np.zeros(tokens * spec.num_kv_heads, np.int64)


def _branches(spec: ModelSpec, tokens: int, memory: Memory) -> dict[str, Branch]:
    one = Routes.of(tokens, 1, 1)
    branches = {}
    sizes = {"": (one, spec.intermediate_size), "shared": (one, spec.shared_intermediate_size)}
    if spec.routing:
        routes = Routes.of(tokens, spec.routing.num_experts, spec.routing.top_k, sum(spec.moe_layers))
        sizes["experts"] = (routes, spec.moe_intermediate_size)
    for name, (routes, inner) in sizes.items():
        if inner:
            pairs = tokens * routes.top_k
            outs = memory(pairs, 4 * padded(spec.hidden_size))
            branches[name] = Branch(routes, Rows.of(pairs, inner), outs)
    return branches
