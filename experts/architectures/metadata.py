"""ModelSpec from GGUF key-values."""

import numpy as np
from numpy.typing import NDArray

from ..checkpoint.base import Checkpoint
from ..errors import CheckpointError
from ..fields import Fields
from ..formats import dequantise
from ..rope import MAX_CONTEXT, rope_from_gguf
from ..spec import ModelSpec, RoutingSpec
from .base import MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, Architecture

# Keys of other families that share these architectures' names; they would change the numbers.
REFUSED = ("attention.scale", "residual_scale", "logit_scale", "embedding_scale", "attn_logit_softcapping")


def spec_from_gguf(architecture: Architecture, checkpoint: Checkpoint) -> ModelSpec:
    """Read the metadata key by key.

    Raises CheckpointError for a missing or impossible value, UnsupportedModelError for one that is not implemented.
    """
    keys = Fields(checkpoint.path, checkpoint.metadata, f"{architecture.gguf_name}.")
    for key in REFUSED:
        if keys.has(key):
            raise keys.unsupported(key, "is not supported")
    num_layers = keys.integer("block_count", 1, MAX_LAYERS)
    hidden_size = keys.integer("embedding_length", 1, MAX_WIDTH)
    num_heads = keys.integer("attention.head_count", 1, MAX_HEADS)
    num_kv_heads = keys.integer("attention.head_count_kv", 1, num_heads, num_heads)
    if num_heads % num_kv_heads:
        raise keys.broken("attention.head_count", f"is {num_heads}, not a multiple of {num_kv_heads} key-value heads")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    max_context = keys.integer("context_length", 1, MAX_CONTEXT)
    rope = rope_from_gguf(keys, head_dim, max_context, _rope_factors(checkpoint))
    if architecture.gguf_adjacent_rope and rope.rotary_dim != head_dim:
        raise keys.unsupported(
            "rope.dimension_count", f"is {rope.rotary_dim}, only a whole head of {head_dim} is supported"
        )
    moe_layers = tuple(architecture.moe and _is_moe(checkpoint, layer) for layer in range(num_layers))
    any_moe = any(moe_layers)
    window = keys.integer("attention.sliding_window", 0, MAX_CONTEXT, 0)
    return ModelSpec(
        architecture=architecture.name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=_vocab_size(checkpoint),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=rope,
        max_context=max_context,
        intermediate_size=0 if all(moe_layers) else keys.integer("feed_forward_length", 1, MAX_WIDTH),
        qk_norm=architecture.qk_norm,
        clip_qkv=keys.number("attention.clamp_kqv", 1e-6, 1e6) if keys.has("attention.clamp_kqv") else None,
        sliding_window=window if 0 < window < max_context else None,
        moe_layers=moe_layers,
        routing=_routing(architecture, keys) if any_moe else None,
        moe_intermediate_size=keys.integer(architecture.gguf_expert_size_key, 1, MAX_WIDTH) if any_moe else 0,
        shared_intermediate_size=_shared_size(architecture, keys) if any_moe else 0,
        shared_gate=architecture.shared_expert and any_moe,
    )


def gguf_biases(architecture: Architecture, checkpoint: Checkpoint) -> frozenset[str]:
    """The bias roles that each layer has: those that the architecture demands, or those that the first layer has."""
    if architecture.gguf_biases_required:
        return architecture.bias_roles
    first = {role: architecture.gguf_names[role][0].template.format(i=0) for role in architecture.bias_roles}
    return frozenset(role for role, name in first.items() if name in checkpoint.tensors)


def _head_dim(keys: Fields, hidden_size: int, num_heads: int) -> int:
    if not keys.has("attention.key_length") and hidden_size % num_heads:
        raise keys.broken(
            "embedding_length", f"is {hidden_size}, not a multiple of {num_heads} heads; no key_length given"
        )
    head_dim = keys.integer("attention.key_length", 2, MAX_HEAD_DIM, hidden_size // num_heads)
    if keys.integer("attention.value_length", 2, MAX_HEAD_DIM, head_dim) != head_dim:
        raise keys.unsupported("attention.value_length", f"differs from the keys' {head_dim}, which is not supported")
    return head_dim


def _vocab_size(checkpoint: Checkpoint) -> int:
    embed = checkpoint.tensors.get("token_embd.weight")
    if embed is None:
        raise CheckpointError(
            f"{checkpoint.path}: tensor 'token_embd.weight' is missing; download or convert the model again"
        )
    return embed.shape[0]


def _rope_factors(checkpoint: Checkpoint) -> NDArray[np.float32] | None:
    tensor = checkpoint.tensors.get("rope_freqs.weight")
    return None if tensor is None else dequantise(tensor)


def _is_moe(checkpoint: Checkpoint, layer: int) -> bool:
    """A layer is dense only if its dense weights are there; whatever else is missing is then reported by name."""
    return f"blk.{layer}.ffn_gate.weight" not in checkpoint.tensors


def _routing(architecture: Architecture, keys: Fields) -> RoutingSpec:
    num_experts = keys.integer("expert_count", 1, MAX_EXPERTS)
    gating = keys.integer("expert_gating_func", 0, 255, 1)
    if gating > 1:
        raise keys.unsupported("expert_gating_func", f"is {gating}, only softmax (1) is supported")
    renormalise = architecture.renormalise
    if renormalise is None:
        renormalise = keys.boolean("expert_weights_norm", architecture.gguf_renormalise)
    return RoutingSpec(
        num_experts=num_experts,
        top_k=keys.integer("expert_used_count", 1, num_experts),
        score=architecture.score,
        renormalise=renormalise,
        scale=keys.number("expert_weights_scale", 0.0, 1e3, 0.0) or 1.0,  # zero stands for none
    )


def _shared_size(architecture: Architecture, keys: Fields) -> int:
    return keys.integer("expert_shared_feed_forward_length", 1, MAX_WIDTH) if architecture.shared_expert else 0
