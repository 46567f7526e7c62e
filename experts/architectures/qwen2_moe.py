"""Qwen2-MoE and Qwen1.5-MoE: Q, K and V biases, and a shared expert behind a sigmoid gate."""

from .base import Architecture
from .names import CONFIG_SHARED, GGUF, QKV_BIASES

QWEN2_MOE = Architecture(
    name="qwen2_moe",
    gguf_name="qwen2moe",
    config_names=CONFIG_SHARED,
    gguf_names=GGUF,
    shared_expert=True,
    some_layers_dense=True,
    bias_key="qkv_bias",
    bias_default=True,
    bias_roles=QKV_BIASES,
    gguf_biases_required=True,
    sliding="layered",
)
