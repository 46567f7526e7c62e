"""ModelSpec: what a decoder-only model is, as numbers. Filled by `architectures` from config.json or GGUF metadata."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding in the half-split convention: element i turns with element i + rotary_dim / 2.

    `inverse_frequencies` holds rotary_dim / 2 values in radians per position, after any scaling; `magnitude` multiplies
    sine and cosine (YaRN's attention factor).
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float = 1.0

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inverse_frequencies)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSpec:
    """How a token chooses experts.

    score "softmax": probabilities over all experts, then top-k of them; "softmax_top_k": softmax over the chosen logits
    only. `renormalise` divides the chosen weights by their sum; `scale` multiplies them last.
    Equal scores go to the lower expert index.
    """

    num_experts: int
    top_k: int
    score: Literal["softmax", "softmax_top_k"] = "softmax"
    renormalise: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shapes and rules of one model. A layer i is MoE where moe_layers[i], else dense with `intermediate_size`."""

    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    rope: RopeSpec
    max_context: int
    intermediate_size: int = 0
    qk_norm: Literal["none", "head", "full"] = "none"  # "full": over all heads' elements together (OLMoE)
    clip_qkv: float | None = None
    sliding_window: int | None = None  # a token sees itself and the window - 1 tokens before it
    moe_layers: tuple[bool, ...] = ()
    routing: RoutingSpec | None = None
    moe_intermediate_size: int = 0
    shared_intermediate_size: int = 0  # 0: no shared expert
    shared_gate: bool = False  # the shared expert's output times sigmoid(shared_gate . x)

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim
