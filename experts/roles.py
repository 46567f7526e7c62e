"""The canonical roles of a model's tensors and the shape that the spec demands of each."""

from collections.abc import Collection

from .spec import ModelSpec

Shape = tuple[int, ...]


def role_shapes(spec: ModelSpec, biases: Collection[str]) -> dict[str, Shape]:
    """{role: shape} of all tensors that the model needs; `biases` are the bias roles of each layer."""
    shapes: dict[str, Shape] = {
        "embed": (spec.vocab_size, spec.hidden_size),
        "final_norm": (spec.hidden_size,),
        "head": (spec.vocab_size, spec.hidden_size),
    }
    for layer in range(spec.num_layers):
        feed_forward = _moe_shapes(spec) if spec.moe_layers[layer] else _dense_shapes(spec)
        for role, shape in (_attention_shapes(spec, biases) | feed_forward).items():
            shapes[f"layers.{layer}.{role}"] = shape
    return shapes


def _attention_shapes(spec: ModelSpec, biases: Collection[str]) -> dict[str, Shape]:
    hidden, q_size, kv_size = spec.hidden_size, spec.q_size, spec.kv_size
    shapes: dict[str, Shape] = {
        "attn_norm": (hidden,),
        "q": (q_size, hidden),
        "k": (kv_size, hidden),
        "v": (kv_size, hidden),
        "o": (hidden, q_size),
        "ffn_norm": (hidden,),
    }
    if spec.qk_norm == "head":
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    elif spec.qk_norm == "full":
        shapes |= {"q_norm": (q_size,), "k_norm": (kv_size,)}
    return shapes | {bias: shapes[bias.removesuffix("_bias")][:1] for bias in biases}


def _dense_shapes(spec: ModelSpec) -> dict[str, Shape]:
    return _gated("", spec.intermediate_size, spec.hidden_size)


def _moe_shapes(spec: ModelSpec) -> dict[str, Shape]:
    assert spec.routing is not None
    experts = spec.routing.num_experts
    banks = _gated("experts.", spec.moe_intermediate_size, spec.hidden_size)
    shapes = {"router": (experts, spec.hidden_size)} | {role: (experts, *shape) for role, shape in banks.items()}
    if spec.shared_intermediate_size:
        shapes |= _gated("shared.", spec.shared_intermediate_size, spec.hidden_size)
    if spec.shared_gate:
        shapes["shared_gate"] = (1, spec.hidden_size)
    return shapes


def _gated(prefix: str, inner: int, hidden: int) -> dict[str, Shape]:
    return {f"{prefix}gate": (inner, hidden), f"{prefix}up": (inner, hidden), f"{prefix}down": (hidden, inner)}
