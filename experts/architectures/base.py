"""What an architecture is: rules and names as data. config.py and metadata.py turn it into a ModelSpec."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20  # any row of a weight matrix but the vocabulary's
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_VOCAB = 1 << 24
MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class Source:
    """Where a role's tensor lies in a checkpoint.

    template: the tensor's name, with {i} for the layer and {e} for an expert that has a tensor of its own.
    part, parts: the tensor's rows are `parts` equal stacks, of which this is one (gate and up in one tensor).
    """

    template: str
    part: int = 0
    parts: int = 1

    @property
    def per_expert(self) -> bool:
        return "{e}" in self.template


Names = Mapping[str, tuple[Source, ...]]  # role without its "layers.{i}." -> where it may lie, the likeliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model family. Keys are those of config.json unless they are said to be GGUF's.

    renormalise: None where the config says it (norm_topk_prob); a GGUF file may say it, else `gguf_renormalise` holds.
    sliding: "ignored"; "always": sliding_window holds for each layer where given; "switched": only if
    use_sliding_window is true; "layered": then layer_types say which layers; "refused".
    gguf_adjacent_rope: GGUF rows of Q and K are ordered so that rope turns adjacent pairs.
    """

    name: str  # model_type
    gguf_name: str
    config_names: Names
    gguf_names: Names
    moe: bool = True
    default_theta: float = 10000.0
    kv_heads_required: bool = True
    qk_norm: Literal["none", "head", "full"] = "none"
    score: Literal["softmax", "softmax_top_k"] = "softmax"
    renormalise: bool | None = None
    gguf_renormalise: bool = False
    experts_key: str = "num_experts"
    expert_size_key: str = "moe_intermediate_size"
    gguf_expert_size_key: str = "expert_feed_forward_length"
    shared_expert: bool = False
    some_layers_dense: bool = False  # decoder_sparse_step and mlp_only_layers
    bias_key: str = ""
    bias_default: bool = False
    bias_roles: frozenset[str] = field(default=frozenset())
    gguf_biases_required: bool = False
    sliding: Literal["ignored", "always", "switched", "layered", "refused"] = "ignored"
    clip_qkv: bool = False
    gguf_adjacent_rope: bool = False
