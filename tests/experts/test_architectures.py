import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.experts.architectures import architecture_of, biases_of, spec_of
from isotherm.experts.checkpoint.base import Checkpoint, RawTensor
from isotherm.experts.errors import CheckpointError, ModelError, UnsupportedModelError
from isotherm.experts.fields import Fields
from isotherm.experts.model import open_model
from isotherm.experts.rope import rope_from_config, rope_from_gguf
from isotherm.experts.spec import ModelSpec, RoutingSpec
from support import tiny
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def spec_from(config: dict[str, Any]) -> ModelSpec:
    checkpoint = Checkpoint(Path("folder/model.safetensors"), "safetensors", config, {}, "")
    return spec_of(architecture_of(checkpoint), checkpoint)


def edited(architecture: str, **changes: Any) -> dict[str, Any]:
    """The tiny config with some keys changed; a value of None removes the key."""
    values = {**tiny.config(architecture).to_dict(), **changes}
    return {key: value for key, value in values.items() if value is not None}


def gguf_checkpoint(architecture: str, tensors: tuple[str, ...] = (), **changes: Any) -> Checkpoint:
    """Metadata of a small GGUF model with some keys changed; dots of a key are written as two underscores."""
    prefix = tiny.GGUF_NAMES[architecture]
    keys: dict[str, Any] = {
        "block_count": 2,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if architecture != "llama":
        keys |= {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 96}
    if architecture == "qwen2_moe":
        keys["expert_shared_feed_forward_length"] = 128
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {f"{prefix}.{key}": value for key, value in keys.items() if value is not None}
    data = np.zeros((320, 256), np.uint8)
    file = Path("model.gguf")
    found = {name: RawTensor(name, file, (320, 64), "F32", data) for name in ("token_embd.weight", *tensors)}
    return Checkpoint(file, "gguf", {"general.architecture": prefix, **metadata}, found, "")


def spec_from_keys(architecture: str, **changes: Any) -> ModelSpec:
    checkpoint = gguf_checkpoint(architecture, **changes)
    return spec_of(architecture_of(checkpoint), checkpoint)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_both_containers_give_the_same_spec(tmp_path, architecture):
    tiny.write_hf(tmp_path / "hf", architecture)
    tiny.write_gguf(tmp_path / "model.gguf", architecture)
    specs = [open_model(tmp_path / name).spec for name in ("hf", "model.gguf")]
    exact = [dataclasses.replace(spec, rms_eps=0.0, rope=specs[0].rope) for spec in specs]
    assert exact[0] == exact[1]
    assert specs[0].architecture == architecture
    assert specs[0].rms_eps == pytest.approx(specs[1].rms_eps)
    np.testing.assert_allclose(specs[0].rope.inverse_frequencies, specs[1].rope.inverse_frequencies, rtol=1e-6)


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_sizes_of_the_config(architecture):
    spec = spec_from(edited(architecture))
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size, spec.num_heads) == (2, 64, tiny.VOCAB_SIZE, 4)
    assert spec.num_kv_heads == (4 if architecture == "olmoe" else 2)
    assert spec.head_dim == (32 if architecture == "qwen3_moe" else 16)
    assert spec.moe_layers == (architecture != "llama",) * 2
    assert spec.moe_intermediate_size == {"llama": 0, "qwen2_moe": 64}.get(architecture, 96)
    assert (spec.shared_intermediate_size, spec.shared_gate) == (
        (96, True) if architecture == "qwen2_moe" else (0, False)
    )
    assert spec.qk_norm == {"qwen3_moe": "head", "olmoe": "full"}.get(architecture, "none")


@pytest.mark.parametrize(
    ("architecture", "routing"),
    [
        ("mixtral", RoutingSpec(num_experts=4, top_k=2, score="softmax_top_k", renormalise=False)),
        ("qwen2_moe", RoutingSpec(num_experts=8, top_k=3, renormalise=False)),
        ("qwen3_moe", RoutingSpec(num_experts=8, top_k=2, renormalise=True)),
        ("olmoe", RoutingSpec(num_experts=8, top_k=2, renormalise=False)),
    ],
)
def test_routing_rule(architecture, routing):
    assert spec_from(edited(architecture)).routing == routing


@pytest.mark.parametrize("norm", [False, True])
def test_norm_topk_prob_decides_renormalisation(norm):
    for architecture in ("qwen2_moe", "qwen3_moe", "olmoe"):
        routing = spec_from(edited(architecture, norm_topk_prob=norm)).routing
        assert routing is not None and routing.renormalise is norm


@pytest.mark.parametrize(
    ("step", "dense", "expected"),
    [(1, [], (True,) * 4), (2, [], (False, True, False, True)), (1, [0, 3], (False, True, True, False))],
)
def test_some_layers_may_be_dense(step, dense, expected):
    spec = spec_from(edited("qwen3_moe", num_hidden_layers=4, decoder_sparse_step=step, mlp_only_layers=dense))
    assert spec.moe_layers == expected
    assert spec.intermediate_size == (0 if all(expected) else 96)


def test_gguf_layers_with_dense_weights_are_dense():
    checkpoint = gguf_checkpoint("qwen3_moe", tensors=("blk.0.ffn_gate.weight",))
    assert spec_of(architecture_of(checkpoint), checkpoint).moe_layers == (False, True)


def test_olmoe_clips():
    assert spec_from(edited("olmoe", clip_qkv=8.0)).clip_qkv == 8.0
    assert spec_from_keys("olmoe", attention__clamp_kqv=8.0).clip_qkv == 8.0


@pytest.mark.parametrize(
    ("architecture", "changes", "window"),
    [
        ("llama", {"sliding_window": 64}, None),
        ("mixtral", {"sliding_window": 64}, 64),
        ("mixtral", {"sliding_window": 4096}, None),
        ("qwen3_moe", {"sliding_window": 64, "use_sliding_window": True}, 64),
        ("qwen3_moe", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("qwen2_moe", {"sliding_window": 64, "use_sliding_window": False}, None),
        ("qwen2_moe", {"sliding_window": 64, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 64),
        ("qwen2_moe", {"sliding_window": 64, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
    ],
)
def test_sliding_window_rules(architecture, changes, window):
    assert spec_from(edited(architecture, **changes)).sliding_window == window


@pytest.mark.parametrize(
    ("architecture", "changes", "roles"),
    [
        ("llama", {}, ""),
        ("llama", {"attention_bias": True}, "qkvo"),
        ("mixtral", {}, ""),
        ("qwen2_moe", {}, "qkv"),
        ("qwen2_moe", {"qkv_bias": False}, ""),
        ("qwen3_moe", {"attention_bias": True}, "qkvo"),
    ],
)
def test_bias_roles_of_a_config(architecture, changes, roles):
    checkpoint = Checkpoint(Path("config.json"), "safetensors", edited(architecture, **changes), {}, "")
    assert biases_of(architecture_of(checkpoint), checkpoint) == {f"{role}_bias" for role in roles}


SLIDING = {"sliding_window": 64, "use_sliding_window": True}
REFUSED = [
    ("llama", "hidden_act", {"hidden_act": "gelu"}, UnsupportedModelError),
    ("llama", "mlp_bias", {"mlp_bias": True}, UnsupportedModelError),
    ("llama", "num_hidden_layers", {"num_hidden_layers": None}, CheckpointError),
    ("llama", "num_hidden_layers", {"num_hidden_layers": 0}, CheckpointError),
    ("llama", "num_hidden_layers", {"num_hidden_layers": 10**9}, CheckpointError),
    ("llama", "num_attention_heads", {"num_attention_heads": 0}, CheckpointError),
    ("llama", "num_attention_heads", {"num_key_value_heads": 3}, CheckpointError),
    ("llama", "num_key_value_heads", {"num_key_value_heads": 8}, CheckpointError),
    ("llama", "hidden_size", {"hidden_size": -64}, CheckpointError),
    ("llama", "hidden_size", {"hidden_size": "64"}, CheckpointError),
    ("llama", "hidden_size", {"hidden_size": 66, "head_dim": None}, CheckpointError),
    ("llama", "hidden_size", {"hidden_size": 1 << 40}, CheckpointError),
    ("llama", "vocab_size", {"vocab_size": True}, CheckpointError),
    ("llama", "rms_norm_eps", {"rms_norm_eps": math.nan}, CheckpointError),
    ("llama", "rms_norm_eps", {"rms_norm_eps": -1.0}, CheckpointError),
    ("llama", "rms_norm_eps", {"rms_norm_eps": 10**400}, CheckpointError),
    ("llama", "intermediate_size", {"intermediate_size": None}, CheckpointError),
    ("mixtral", "num_key_value_heads", {"num_key_value_heads": None}, CheckpointError),
    ("mixtral", "num_experts_per_tok", {"num_experts_per_tok": 5}, CheckpointError),
    ("mixtral", "num_local_experts", {"num_local_experts": None}, CheckpointError),
    ("qwen2_moe", "shared_expert_intermediate_size", {"shared_expert_intermediate_size": None}, CheckpointError),
    ("qwen2_moe", "norm_topk_prob", {"norm_topk_prob": "yes"}, CheckpointError),
    ("qwen2_moe", "mlp_only_layers", {"mlp_only_layers": [7]}, CheckpointError),
    ("qwen2_moe", "layer_types", {**SLIDING, "layer_types": ["sliding_attention", "x"]}, UnsupportedModelError),
    ("qwen2_moe", "max_window_layers", {**SLIDING, "layer_types": None}, UnsupportedModelError),
    ("olmoe", "sliding_window", {"sliding_window": 64}, UnsupportedModelError),
]


@pytest.mark.parametrize(("architecture", "key", "changes", "error"), REFUSED)
def test_refused_config_names_key_and_file(architecture, key, changes, error):
    with pytest.raises(error, match=rf"config\.json: key '{key}' ") as caught:
        spec_from(edited(architecture, **changes))
    assert type(caught.value) is error


GGUF_REFUSED = [
    ("llama", "block_count", {"block_count": None}, CheckpointError),
    ("llama", "block_count", {"block_count": 0}, CheckpointError),
    ("llama", "attention.head_count", {"attention__head_count": 0}, CheckpointError),
    ("llama", "attention.head_count", {"attention__head_count_kv": 3}, CheckpointError),
    ("llama", "attention.head_count_kv", {"attention__head_count_kv": [2, 1]}, UnsupportedModelError),
    ("llama", "attention.head_count_kv", {"attention__head_count_kv": []}, CheckpointError),
    ("llama", "embedding_length", {"embedding_length": 66}, CheckpointError),
    ("llama", "attention.value_length", {"attention__value_length": 8}, UnsupportedModelError),
    ("llama", "rope.dimension_count", {"rope__dimension_count": 8}, UnsupportedModelError),
    ("llama", "rope.scaling.type", {"rope__scaling__type": "longrope"}, UnsupportedModelError),
    ("llama", "rope.scaling.factor", {"rope__scaling__type": "linear", "rope__scaling__factor": 0.0}, CheckpointError),
    ("llama", "logit_scale", {"logit_scale": 0.5}, UnsupportedModelError),
    ("mixtral", "expert_used_count", {"expert_used_count": 9}, CheckpointError),
    ("mixtral", "expert_gating_func", {"expert_gating_func": 2}, UnsupportedModelError),
    ("qwen3_moe", "expert_feed_forward_length", {"expert_feed_forward_length": None}, CheckpointError),
    ("qwen2_moe", "expert_shared_feed_forward_length", {"expert_shared_feed_forward_length": None}, CheckpointError),
]


@pytest.mark.parametrize(("architecture", "key", "changes", "error"), GGUF_REFUSED)
def test_refused_gguf_key_is_named_with_the_file(architecture, key, changes, error):
    full = f"{tiny.GGUF_NAMES[architecture]}.{key}"
    with pytest.raises(error, match=rf"model\.gguf: key '{full}' ") as caught:
        spec_from_keys(architecture, **changes)
    assert type(caught.value) is error


def test_equal_numbers_for_each_layer_are_one_number():
    assert spec_from_keys("llama", attention__head_count_kv=[2, 2]).num_kv_heads == 2


def test_gguf_says_renormalisation_or_the_architecture_does():
    rules = [
        spec_from_keys(name, **changes).routing.renormalise
        for name in ("qwen2_moe", "qwen3_moe")
        for changes in ({}, {"expert_weights_norm": True}, {"expert_weights_norm": False})
    ]
    assert rules == [False, True, False, True, True, False]


@pytest.mark.parametrize(
    ("source", "metadata", "known"),
    [
        ("safetensors", {"model_type": "gpt2"}, "qwen3_moe"),
        ("gguf", {"general.architecture": "gpt2"}, "qwen3moe"),
        ("safetensors", {"model_type": "qwen3_next"}, "qwen3_moe"),
        ("gguf", {"general.architecture": "granitehybrid"}, "qwen3moe"),
    ],
)
def test_unknown_architecture_is_refused_with_those_that_are_known(source, metadata, known):
    """[73] Those with recurrent layers are among the unknown ones."""
    (name,) = metadata.values()
    with pytest.raises(UnsupportedModelError, match=rf"model: architecture '{name}' is not supported.*{known}"):
        architecture_of(Checkpoint(Path("model"), source, metadata, {}, ""))


@pytest.mark.parametrize(("source", "key"), [("safetensors", "model_type"), ("gguf", "general.architecture")])
def test_missing_architecture_is_named(source, key):
    with pytest.raises(CheckpointError, match=rf"model: key '{key}' is missing"):
        architecture_of(Checkpoint(Path("model"), source, {}, {}, ""))


def test_missing_embedding_is_named():
    checkpoint = dataclasses.replace(gguf_checkpoint("llama"), tensors={})
    with pytest.raises(CheckpointError, match=r"model\.gguf: tensor 'token_embd.weight' is missing"):
        spec_of(architecture_of(checkpoint), checkpoint)


# Rope

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
FACTORS = {"short_factor": [1.0 + i / 8 for i in range(32)], "long_factor": [2.0 + i for i in range(32)]}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn without truncation": {**YARN, "truncate": False},
    "yarn with betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn with a factor": {**YARN, "attention_factor": 0.75},
    "yarn with mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 128, **FACTORS},
}


@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("name", ROPES)
def test_rope_agrees_with_transformers(name, style):
    scaling = dict(ROPES[name])
    config = tiny.config("llama", head_dim=64, rope_parameters={"rope_theta": 5000.0, **scaling})
    reference = LlamaRotaryEmbedding(config)
    values = {"rope_parameters": {"rope_theta": 5000.0, **scaling}}
    if style == "rope_scaling":
        scaling["type"] = scaling.pop("rope_type")
        values = {"rope_theta": 5000.0, "rope_scaling": scaling}
    rope, context = rope_from_config(Fields(Path("config.json"), values), 64, 512, 10000.0)
    np.testing.assert_allclose(rope.inverse_frequencies, reference.inv_freq.numpy(), rtol=2e-6)
    assert rope.magnitude == pytest.approx(reference.attention_scaling)
    assert context == (128 if name == "longrope" else 512)


def test_the_architectures_default_base_is_used_where_none_is_given():
    rope, _ = rope_from_config(Fields(Path("config.json"), {}), 64, 512, 1e6)
    assert rope.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 64))


def test_partial_rotary_factor_turns_the_first_elements():
    rope, _ = rope_from_config(Fields(Path("config.json"), {"partial_rotary_factor": 0.5}), 64, 512, 1e4)
    assert rope.rotary_dim == 32


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "su"}, "rope_scaling"),
        ({"rope_type": 3}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "longrope", "factor": 4.0}, "short_factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 31}, "short_factor"),
        ({"rope_type": "longrope", "short_factor": [0.0] * 32}, "short_factor"),
        ([], "rope_scaling"),
    ],
)
def test_refused_rope_scaling_names_the_key(scaling, key):
    with pytest.raises(ModelError, match=rf"config\.json: key '{key}'"):
        rope_from_config(Fields(Path("config.json"), {"rope_scaling": scaling or "x"}), 64, 512, 1e4)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("default", {}),
        ("linear", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("linear", {"rope.scale_linear": 4.0}),
        (
            "yarn",
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128},
        ),
    ],
)
def test_gguf_rope_agrees_with_the_config(name, keys):
    fields = Fields(Path("model.gguf"), {"rope.freq_base": 5000.0, **keys})
    values = {"rope_parameters": {"rope_theta": 5000.0, **ROPES[name]}}
    expected, _ = rope_from_config(Fields(Path("config.json"), values), 64, 512, 1e4)
    assert rope_from_gguf(fields, 64, 512, None) == expected


def test_gguf_rope_factors_divide_the_frequencies():
    plain, _ = rope_from_config(Fields(Path("config.json"), {}), 64, 512, 1e4)
    scaled, _ = rope_from_config(Fields(Path("config.json"), {"rope_scaling": LLAMA3}), 64, 512, 1e4)
    factors = (np.array(plain.inverse_frequencies) / scaled.inverse_frequencies).astype(np.float32)
    got = rope_from_gguf(Fields(Path("model.gguf"), {}), 64, 512, factors)
    np.testing.assert_allclose(got.inverse_frequencies, scaled.inverse_frequencies, rtol=1e-6)


@pytest.mark.parametrize("factors", [np.ones(31), np.zeros(32), np.full(32, np.nan)])
def test_broken_gguf_rope_factors_are_named(factors):
    with pytest.raises(CheckpointError, match=r"model\.gguf: tensor 'rope_freqs.weight'"):
        rope_from_gguf(Fields(Path("model.gguf"), {}), 64, 512, factors.astype(np.float32))
