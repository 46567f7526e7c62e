"""Llama: dense, grouped-query attention. Also the many models that took over its form, SmolLM2 among them."""

from .base import Architecture
from .names import CONFIG_DENSE, GGUF, QKVO_BIASES

LLAMA = Architecture(
    name="llama",
    gguf_name="llama",
    config_names=CONFIG_DENSE,
    gguf_names=GGUF,
    moe=False,
    kv_heads_required=False,
    bias_key="attention_bias",
    bias_roles=QKVO_BIASES,
    gguf_adjacent_rope=True,
)
