"""The definition of what a model computes: one causal pass in plain NumPy, no cache, never optimised.

Shapes: T tokens, H hidden, V vocabulary, N query heads, G key/value heads, D head elements, I intermediate, E experts.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .spec import ModelSpec, RopeSpec, RoutingSpec

Array = NDArray[np.floating[Any]]
Observer = Callable[[int, Array], None]


class DenseTensors(Protocol):
    """A model's tensors by role, as float32 (see `weights.Weights`)."""

    def has(self, role: str) -> bool: ...

    def dense(self, role: str) -> NDArray[np.float32]: ...

    def dense_expert(self, role: str, expert: int) -> NDArray[np.float32]: ...


class DenseModel(Protocol):
    """What a model is, and its tensors."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def weights(self) -> DenseTensors: ...


class ReferenceDecoder:
    """Computes in `dtype` throughout; each weight is dequantised when it is needed and dropped again."""

    def __init__(self, model: DenseModel, dtype: DTypeLike = np.float64) -> None:
        self.spec = model.spec
        self.weights = model.weights
        self.dtype = np.dtype(dtype)

    def logits(self, tokens: Sequence[int]) -> Array:
        """Next-token scores [T, V] after each of the tokens. ValueError where an id is outside the vocabulary."""
        hidden = self.hidden(tokens)  # [T, H]
        return hidden @ self._dense("head").T  # [T, V]

    def hidden(self, tokens: Sequence[int], observe: Observer | None = None) -> Array:
        """The states [T, H] that enter the head.

        `observe(layer, states)` is called with the normalised states [T, H] that enter each feed-forward block.
        """
        ids = self._checked(tokens)
        x = self._dense("embed")[ids]  # [T, H]
        for layer in range(self.spec.num_layers):
            prefix = f"layers.{layer}."
            x = x + self._attention(prefix, self._norm(x, prefix + "attn_norm"))
            states = self._norm(x, prefix + "ffn_norm")
            if observe is not None:
                observe(layer, states)
            is_moe = self.spec.moe_layers[layer]
            x = x + (self._moe(prefix, states) if is_moe else self._feed_forward(prefix, states))
        return self._norm(x, "final_norm")

    def _checked(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or ids.size == 0:
            raise ValueError("tokens must be a flat list of at least one token id")
        if ids.min() < 0 or ids.max() >= self.spec.vocab_size:
            raise ValueError(f"token ids must be 0 to {self.spec.vocab_size - 1}, not {ids.min()} to {ids.max()}")
        return ids

    def _dense(self, role: str) -> Array:
        return self.weights.dense(role).astype(self.dtype, copy=False)

    def _norm(self, x: Array, role: str) -> Array:
        return rms_norm(x, self._dense(role), self.spec.rms_eps)

    def _linear(self, x: Array, role: str) -> Array:
        y = x @ self._dense(role).T
        return y + self._dense(role + "_bias") if self.weights.has(role + "_bias") else y

    def _attention(self, prefix: str, x: Array) -> Array:
        spec = self.spec
        q, k, v = (self._linear(x, prefix + name) for name in "qkv")  # [T, N*D], [T, G*D], [T, G*D]
        if spec.qk_norm == "full":
            q, k = self._norm(q, prefix + "q_norm"), self._norm(k, prefix + "k_norm")
        if spec.clip_qkv is not None:
            q, k, v = (np.clip(part, -spec.clip_qkv, spec.clip_qkv) for part in (q, k, v))
        q, k, v = (part.reshape(len(x), -1, spec.head_dim) for part in (q, k, v))  # [T, N, D], [T, G, D], [T, G, D]
        if spec.qk_norm == "head":
            q, k = self._norm(q, prefix + "q_norm"), self._norm(k, prefix + "k_norm")
        q, k = rotate(q, spec.rope), rotate(k, spec.rope)
        mixed = np.empty_like(q)  # [T, N, D]
        mask = visibility(len(x), spec.sliding_window).astype(q.dtype)  # [T, T]
        group = spec.num_heads // spec.num_kv_heads
        for head in range(spec.num_heads):
            mixed[:, head] = attend(q[:, head], k[:, head // group], v[:, head // group], mask)
        return self._linear(mixed.reshape(len(x), -1), prefix + "o")  # [T, H]

    def _feed_forward(self, prefix: str, x: Array) -> Array:
        gate, up, down = (self._dense(prefix + name) for name in ("gate", "up", "down"))  # [I, H], [I, H], [H, I]
        return swiglu(x, gate, up, down)

    def _moe(self, prefix: str, x: Array) -> Array:
        assert self.spec.routing is not None
        router_logits = x @ self._dense(prefix + "router").T  # [T, E]
        experts, weights = route(router_logits, self.spec.routing)  # [T, top_k] each
        y = mix(x, experts, weights, lambda expert, rows: swiglu(rows, *self._expert(prefix, expert)))
        if self.spec.shared_intermediate_size:
            y += self._shared(prefix, x)
        return y

    def _expert(self, prefix: str, expert: int) -> tuple[Array, Array, Array]:
        gate, up, down = (
            self.weights.dense_expert(f"{prefix}experts.{name}", expert).astype(self.dtype, copy=False)
            for name in ("gate", "up", "down")
        )
        return gate, up, down  # [I, H], [I, H], [H, I]

    def _shared(self, prefix: str, x: Array) -> Array:
        y = self._feed_forward(prefix + "shared.", x)
        if self.spec.shared_gate:
            y = y * sigmoid(x @ self._dense(prefix + "shared_gate").reshape(-1, 1))  # [T, H] * [T, 1]
        return y


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean of squares + eps) * weight, over the last axis."""
    size: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return x / size * weight


def rotate(x: Array, rope: RopeSpec) -> Array:
    """Rotary embedding of x [T, heads, D] at positions 0 to T - 1; elements past rotary_dim stay as they are."""
    half = len(rope.inverse_frequencies)
    angles = np.arange(len(x))[:, None] * np.array(rope.inverse_frequencies)  # [T, half]
    cosine = (np.cos(angles) * rope.magnitude).astype(x.dtype)[:, None]  # [T, 1, half]
    sine = (np.sin(angles) * rope.magnitude).astype(x.dtype)[:, None]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine, rest), axis=-1)


def visibility(num_tokens: int, window: int | None) -> Array:
    """[T, T] to add to scores: 0 where the row's token sees the column's, which lies 0 to window - 1 before it."""
    positions = np.arange(num_tokens)
    distance = positions[:, None] - positions
    return np.where((distance >= 0) & (distance < (window or num_tokens)), 0.0, -np.inf)


def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Attention of one head: q, k, v [T, D], mask [T, T] added to the scores -> [T, D]."""
    scale = q.dtype.type(q.shape[-1] ** -0.5)
    return softmax(q @ k.T * scale + mask) @ v


def route(router_logits: Array, routing: RoutingSpec) -> tuple[NDArray[np.int64], Array]:
    """Chosen experts [T, top_k], best first, and their weights [T, top_k], from router logits [T, E]."""
    # Softmax keeps the order, so the logits rank the experts; the stable sort gives ties to the lower index.
    experts = np.argsort(-router_logits, axis=-1, kind="stable")[:, : routing.top_k]
    if routing.score == "softmax_top_k":
        weights = softmax(np.take_along_axis(router_logits, experts, axis=-1))
    else:
        weights = np.take_along_axis(softmax(router_logits), experts, axis=-1)
    if routing.renormalise:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return experts, weights * weights.dtype.type(routing.scale)


def mix(x: Array, experts: NDArray[np.int64], weights: Array, apply: Callable[[int, Array], Array]) -> Array:
    """Sum of the chosen experts' outputs by weight: x [T, H], experts and weights [T, top_k] -> [T, H].

    `apply(expert, rows)` is one expert's output for the rows [n, H] that chose it.
    """
    y = np.zeros_like(x)
    for expert in np.unique(experts):
        rows, slots = np.nonzero(experts == expert)
        y[rows] += weights[rows, slots, None] * apply(int(expert), x[rows])
    return y


def swiglu(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """down @ (SiLU(gate @ x) * (up @ x)) for each row of x [T, H]; weights [I, H], [I, H], [H, I]."""
    gated, lifted = x @ gate.T, x @ up.T  # [T, I] each
    mixed: Array = (gated * sigmoid(gated) * lifted) @ down.T
    return mixed


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by the form of it that does not overflow."""
    power = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, power) / (1 + power)
    return result


def softmax(x: Array) -> Array:
    """Over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = powers / powers.sum(axis=-1, keepdims=True)
    return result
