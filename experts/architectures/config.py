"""ModelSpec from a config.json."""

from ..checkpoint.base import Checkpoint
from ..fields import Fields
from ..rope import MAX_CONTEXT, rope_from_config
from ..spec import ModelSpec, RoutingSpec
from .base import MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Architecture

EXPERT_KEYS = ("num_experts", "num_local_experts")  # both are written for the same family


def config_of(checkpoint: Checkpoint) -> Fields:
    """The checkpoint's config.json, ready to be read key by key."""
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    return Fields(folder / "config.json", checkpoint.metadata)


def spec_from_config(architecture: Architecture, checkpoint: Checkpoint) -> ModelSpec:
    """Read the config key by key.

    Raises CheckpointError for a missing or impossible value, UnsupportedModelError for one that is not implemented.
    """
    config = config_of(checkpoint)
    _refuse(architecture, config)
    num_layers = config.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden_size = config.integer("hidden_size", 1, MAX_WIDTH)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    default = None if architecture.kv_heads_required else num_heads
    num_kv_heads = config.integer("num_key_value_heads", 1, num_heads, default)
    if num_heads % num_kv_heads:
        raise config.broken("num_attention_heads", f"is {num_heads}, not a multiple of {num_kv_heads} key-value heads")
    if not config.has("head_dim") and hidden_size % num_heads:
        raise config.broken(
            "hidden_size", f"is {hidden_size}, not a multiple of {num_heads} heads, and head_dim is missing"
        )
    head_dim = config.integer("head_dim", 2, MAX_HEAD_DIM, hidden_size // num_heads)
    max_context = config.integer("max_position_embeddings", 1, MAX_CONTEXT)
    rope, max_context = rope_from_config(config, head_dim, max_context, architecture.default_theta)
    moe_layers = _moe_layers(architecture, config, num_layers)
    clip = architecture.clip_qkv and config.has("clip_qkv")
    return ModelSpec(
        architecture=architecture.name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=config.integer("vocab_size", 1, MAX_VOCAB),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_eps=config.number("rms_norm_eps", 0.0, 1.0),
        rope=rope,
        max_context=max_context,
        intermediate_size=0 if all(moe_layers) else config.integer("intermediate_size", 1, MAX_WIDTH),
        qk_norm=architecture.qk_norm,
        clip_qkv=config.number("clip_qkv", 1e-6, 1e6) if clip else None,
        sliding_window=_sliding_window(architecture, config, num_layers, max_context),
        moe_layers=moe_layers,
        routing=_routing(architecture, config) if any(moe_layers) else None,
        moe_intermediate_size=config.integer(architecture.expert_size_key, 1, MAX_WIDTH) if any(moe_layers) else 0,
        shared_intermediate_size=_shared_size(architecture, config) if any(moe_layers) else 0,
        shared_gate=architecture.shared_expert and any(moe_layers),
    )


def config_biases(architecture: Architecture, checkpoint: Checkpoint) -> frozenset[str]:
    """The bias roles that each layer has."""
    if not architecture.bias_key:
        return frozenset()
    present = config_of(checkpoint).boolean(architecture.bias_key, architecture.bias_default)
    return architecture.bias_roles if present else frozenset()


def _refuse(architecture: Architecture, config: Fields) -> None:
    activation = config.text("hidden_act", "silu")
    if activation != "silu":
        raise config.unsupported("hidden_act", f"is {activation!r}, only 'silu' is supported")
    if config.has("mlp_bias") and config.boolean("mlp_bias", False):
        raise config.unsupported("mlp_bias", "is true, biases in the feed-forward layers are not supported")
    if architecture.sliding == "refused" and config.has("sliding_window"):
        raise config.unsupported("sliding_window", f"is not supported for {architecture.name}")


def _moe_layers(architecture: Architecture, config: Fields, num_layers: int) -> tuple[bool, ...]:
    if not architecture.some_layers_dense:
        return (architecture.moe,) * num_layers
    step = config.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < num_layers for layer in dense):
        raise config.broken("mlp_only_layers", f"is {dense!r}, not a list of layers below {num_layers}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers))


def _routing(architecture: Architecture, config: Fields) -> RoutingSpec:
    key = next((key for key in EXPERT_KEYS if config.has(key)), architecture.experts_key)
    num_experts = config.integer(key, 1, MAX_EXPERTS)
    renormalise = architecture.renormalise
    return RoutingSpec(
        num_experts=num_experts,
        top_k=config.integer("num_experts_per_tok", 1, num_experts),
        score=architecture.score,
        renormalise=config.boolean("norm_topk_prob", False) if renormalise is None else renormalise,
    )


def _shared_size(architecture: Architecture, config: Fields) -> int:
    return config.integer("shared_expert_intermediate_size", 1, MAX_WIDTH) if architecture.shared_expert else 0


def _sliding_window(architecture: Architecture, config: Fields, num_layers: int, max_context: int) -> int | None:
    """The window that holds for all layers; one at least as long as the context is none."""
    kind = architecture.sliding
    if kind in ("ignored", "refused") or not config.has("sliding_window"):
        return None
    if kind != "always" and not config.boolean("use_sliding_window", False):
        return None
    if kind == "layered" and not _all_layers_slide(config, num_layers):
        return None
    window = config.integer("sliding_window", 1, MAX_CONTEXT)
    return window if window < max_context else None


def _all_layers_slide(config: Fields, num_layers: int) -> bool:
    """False where none does; UnsupportedModelError where only some do."""
    if config.has("layer_types"):
        kinds = config.get("layer_types")
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            raise config.broken("layer_types", f"is {kinds!r}, not a list of {num_layers} kinds")
        slides = [kind == "sliding_attention" for kind in kinds]
        key = "layer_types"
    else:  # every other layer below max_window_layers, from the first
        key = "max_window_layers"
        limit = config.integer(key, 0, MAX_LAYERS, 28)
        slides = [layer % 2 == 0 and layer < limit for layer in range(num_layers)]
    if any(slides) and not all(slides):
        raise config.unsupported(key, "gives only some layers a sliding window, which is not supported")
    return all(slides)
