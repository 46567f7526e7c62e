"""Qwen3-MoE: RMS norm on each head of Q and K before rope; no shared expert."""

from .base import Architecture
from .names import CONFIG_MOE, GGUF, QKVO_BIASES

QWEN3_MOE = Architecture(
    name="qwen3_moe",
    gguf_name="qwen3moe",
    config_names=CONFIG_MOE,
    gguf_names=GGUF,
    qk_norm="head",
    gguf_renormalise=True,
    some_layers_dense=True,
    bias_key="attention_bias",
    bias_roles=QKVO_BIASES,
    sliding="switched",
)
