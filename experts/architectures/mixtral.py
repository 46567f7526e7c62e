"""Mixtral: each layer routed; the weights of the chosen experts are the softmax over their own logits."""

from .base import Architecture
from .names import CONFIG_MIXTRAL, GGUF

MIXTRAL = Architecture(
    name="mixtral",
    gguf_name="llama",  # with an expert count
    config_names=CONFIG_MIXTRAL,
    gguf_names=GGUF,
    default_theta=1e6,
    score="softmax_top_k",
    renormalise=False,  # that softmax sums to one already
    experts_key="num_local_experts",
    expert_size_key="intermediate_size",
    gguf_expert_size_key="feed_forward_length",
    sliding="always",
    gguf_adjacent_rope=True,
)
