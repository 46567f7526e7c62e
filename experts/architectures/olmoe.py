"""OLMoE: RMS norm over all of Q and all of K, router weights that do not sum to one, optional clipping of Q, K, V."""

from .base import Architecture
from .names import CONFIG_MOE, GGUF, QKVO_BIASES

OLMOE = Architecture(
    name="olmoe",
    gguf_name="olmoe",
    config_names=CONFIG_MOE,
    gguf_names=GGUF,
    kv_heads_required=False,
    qk_norm="full",
    expert_size_key="intermediate_size",
    gguf_expert_size_key="feed_forward_length",
    bias_key="attention_bias",
    bias_roles=QKVO_BIASES,
    sliding="refused",
    clip_qkv=True,
)
