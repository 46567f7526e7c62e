"""Tensor names by canonical role. Roles of a layer are given without their "layers.{i}." here.

Roles: embed, final_norm, head; per layer attn_norm, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm,
ffn_norm; gate, up, down (dense); router, experts.gate, experts.up, experts.down; shared.gate, shared.up, shared.down,
shared_gate.
"""

from .base import Names, Source

QKV_BIASES = frozenset({"q_bias", "k_bias", "v_bias"})
QKVO_BIASES = QKV_BIASES | {"o_bias"}


def _one(template: str) -> tuple[Source, ...]:
    return (Source(template),)


def _config_experts(block: str, gate: str, up: str, down: str) -> Names:
    """A tensor per expert, or all experts in one with gate and up stacked."""
    stacked = f"model.layers.{{i}}.{block}.experts.gate_up_proj"
    one = f"model.layers.{{i}}.{block}.experts.{{e}}."
    return {
        "router": _one(f"model.layers.{{i}}.{block}.gate.weight"),
        "experts.gate": (Source(f"{one}{gate}.weight"), Source(stacked, 0, 2)),
        "experts.up": (Source(f"{one}{up}.weight"), Source(stacked, 1, 2)),
        "experts.down": (Source(f"{one}{down}.weight"), Source(f"model.layers.{{i}}.{block}.experts.down_proj")),
    }


CONFIG_DENSE: Names = {
    "embed": _one("model.embed_tokens.weight"),
    "final_norm": _one("model.norm.weight"),
    "head": _one("lm_head.weight"),
    "attn_norm": _one("model.layers.{i}.input_layernorm.weight"),
    **{part: _one(f"model.layers.{{i}}.self_attn.{part}_proj.weight") for part in "qkvo"},
    **{f"{part}_bias": _one(f"model.layers.{{i}}.self_attn.{part}_proj.bias") for part in "qkvo"},
    "q_norm": _one("model.layers.{i}.self_attn.q_norm.weight"),
    "k_norm": _one("model.layers.{i}.self_attn.k_norm.weight"),
    "ffn_norm": _one("model.layers.{i}.post_attention_layernorm.weight"),
    **{part: _one(f"model.layers.{{i}}.mlp.{part}_proj.weight") for part in ("gate", "up", "down")},
}
CONFIG_MOE: Names = {**CONFIG_DENSE, **_config_experts("mlp", "gate_proj", "up_proj", "down_proj")}
_MIXTRAL = _config_experts("block_sparse_moe", "w1", "w3", "w2")
CONFIG_MIXTRAL: Names = {**CONFIG_MOE, **{role: sources + CONFIG_MOE[role] for role, sources in _MIXTRAL.items()}}
CONFIG_SHARED: Names = {
    **CONFIG_MOE,
    **{
        f"shared.{part}": _one(f"model.layers.{{i}}.mlp.shared_expert.{part}_proj.weight")
        for part in ("gate", "up", "down")
    },
    "shared_gate": _one("model.layers.{i}.mlp.shared_expert_gate.weight"),
}


def _gguf_bank(part: str, *fused: Source) -> tuple[Source, ...]:
    """All experts in one tensor; older files have one per expert."""
    return (Source(f"blk.{{i}}.ffn_{part}_exps.weight"), *fused, Source(f"blk.{{i}}.ffn_{part}.{{e}}.weight"))


GGUF: Names = {
    "embed": _one("token_embd.weight"),
    "final_norm": _one("output_norm.weight"),
    "head": _one("output.weight"),
    "attn_norm": _one("blk.{i}.attn_norm.weight"),
    **{part: _one(f"blk.{{i}}.attn_{part}.weight") for part in "qkv"},
    **{f"{part}_bias": _one(f"blk.{{i}}.attn_{part}.bias") for part in "qkv"},
    "o": _one("blk.{i}.attn_output.weight"),
    "o_bias": _one("blk.{i}.attn_output.bias"),
    "q_norm": _one("blk.{i}.attn_q_norm.weight"),
    "k_norm": _one("blk.{i}.attn_k_norm.weight"),
    "ffn_norm": _one("blk.{i}.ffn_norm.weight"),
    **{part: _one(f"blk.{{i}}.ffn_{part}.weight") for part in ("gate", "up", "down")},
    "router": _one("blk.{i}.ffn_gate_inp.weight"),
    "experts.gate": _gguf_bank("gate", Source("blk.{i}.ffn_gate_up_exps.weight", 0, 2)),
    "experts.up": _gguf_bank("up", Source("blk.{i}.ffn_gate_up_exps.weight", 1, 2)),
    "experts.down": _gguf_bank("down"),
    **{f"shared.{part}": _one(f"blk.{{i}}.ffn_{part}_shexp.weight") for part in ("gate", "up", "down")},
    "shared_gate": _one("blk.{i}.ffn_gate_inp_shexp.weight"),
}
