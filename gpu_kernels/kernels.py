"""Kernels: the ops of a decoder on an accelerator, on torch tensors of its memory. `reference` defines them in torch,
`triton_kernels` has them for CUDA. They write into buffers that they are given and allocate nothing that outlives them,
so that their launches can be captured.

The numbers are those of the CPU's kernels: activations become the same 8-bit codes, products of codes are exact sums of
integers, and floats are added in the same order (`cpu_kernels.tiles.dot`, `combine`). So which device computes an
expert changes no bit of the result, wherever fused multiply-adds are fused.

T tokens, K experts of each, P = T * K pairs (pair t * K + j is choice j of token t), E experts, H hidden size, D
head_dim. Rows beyond the step's tokens are not touched. `count`: int32 [1], the number of tokens of the step, on the
device: a captured launch is made for the largest step and looks there.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from .tensors import Groups, Matrix, Record


@dataclass(frozen=True, slots=True)
class Heads:
    """heads of queries, kv_heads, head_dim; window: a token sees itself and the window - 1 before it, 0 for all.

    norm: "none", "head" or "full" as in ModelSpec.qk_norm; clip: of q and k after a norm over all heads, 0 for none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    norm: str
    eps: float
    clip: float = 0.0
    window: int = 0


@dataclass(frozen=True, slots=True)
class KvCache:
    """A layer's keys and values. memory: uint8 [kv_heads, blocks, part_bytes], a part as `cpu_kernels.kv_layout` says,
    byte for byte as on the CPU; kind: "int16", "int8", "f16", "bf16", "f32"; limit: its largest code, 0 for floats;
    value_at: where values begin in a part."""

    memory: torch.Tensor
    kind: str
    limit: int
    head_dim: int
    value_at: int


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where a step's tokens lie: int64 positions [T], int64 slots [T] (block * 16 + offset), int64 [T] the row of
    `tables` of each token, int64 tables [sequences, blocks]."""

    positions: torch.Tensor
    slots: torch.Tensor
    sequence: torch.Tensor
    tables: torch.Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """How tokens choose; see `cpu_kernels.reference.route`."""

    top_k: int
    softmax_chosen: bool
    renormalise: bool
    scale: float


class Kernels(Protocol):
    """Each op queues its kernels. waits: an op may look at what is computed from the host, and so wait for it, which a
    graph of a card cannot do; without, none waits."""

    waits: bool

    def embed(self, tokens: torch.Tensor, matrix: Matrix, out: torch.Tensor, count: torch.Tensor) -> None:
        """out [T, H] = rows `tokens` [T] of the matrix."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: Record, count: torch.Tensor) -> None:
        """The norm of x [T, H] in each form that `out` has."""
        ...

    def to_record(self, x: torch.Tensor, out: Record, count: torch.Tensor) -> None:
        """x float32 [T, n] in each form that `out` has."""
        ...

    def linear(
        self,
        x: Record,
        matrix: Matrix,
        out: torch.Tensor,
        count: torch.Tensor,
        *,
        bias: torch.Tensor | None = None,
        limit: float = float("inf"),
        add: bool = False,
    ) -> None:
        """out [T, rows] = (+=) clamp(x W^T + bias, -limit, limit)."""
        ...

    def rotate(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        turns: tuple[torch.Tensor, torch.Tensor],
        heads: Heads,
        sequences: Sequences,
        count: torch.Tensor,
    ) -> None:
        """Norm and rotate q [T, heads * D] and k [T, kv_heads * D] in place; turns: cosines and sines [positions, R];
        q is multiplied by D ** -0.5."""
        ...

    def store(
        self, k: torch.Tensor, v: torch.Tensor, cache: KvCache, sequences: Sequences, count: torch.Tensor
    ) -> None:
        """Write k and v of the step's tokens to their slots."""
        ...

    def attend(
        self,
        q: torch.Tensor,
        cache: KvCache,
        heads: Heads,
        sequences: Sequences,
        out: torch.Tensor,
        count: torch.Tensor,
    ) -> None:
        """out [T, heads * D]: attention of each token over the positions of its sequence up to its own."""
        ...

    def route(
        self,
        logits: torch.Tensor,
        routing: Routing,
        ids: torch.Tensor,
        weights: torch.Tensor,
        count: torch.Tensor,
    ) -> None:
        """ids int32 [T, K], weights float32 [T, K]: best first, ties to the lower id."""
        ...

    def align(self, ids: torch.Tensor, slots: torch.Tensor, out: Groups, count: torch.Tensor) -> None:
        """Find the pairs of each slot; slots: int32 [E], the slot of each expert or SENTINEL."""
        ...

    def gate_up(self, x: Record, gate: Matrix, up: Matrix, groups: Groups, out: Record, count: torch.Tensor) -> None:
        """Rows of the pairs that are here: silu(gate x) * (up x), in each form that `out` has; banks by slot."""
        ...

    def down(self, inner: Record, bank: Matrix, groups: Groups, out: torch.Tensor, count: torch.Tensor) -> None:
        """Rows of `out` [P, H] of the pairs that are here: W_down inner."""
        ...

    def combine(
        self,
        x: torch.Tensor,
        outs: torch.Tensor,
        weights: torch.Tensor | None,
        gate: torch.Tensor | None,
        count: torch.Tensor,
    ) -> None:
        """x [T, H] += the sum over K of weights [T, K] * outs [P, H], in the order of the choices; gate [T]: logits,
        whose sigmoid stands for weights of a shared expert; neither for a dense branch."""
        ...

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """A token for each row: out int64 [rows], -1 for a row with a NaN or without a finite best. Each row has its
        rules, as the daemon's sampler has them: temperature float32, 0 is greedy; top_k int64, 0 for all; top_p
        float64; min_p float32. uniform: float64 in [0, 1) that picks."""
        ...
