import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import xllamacpp
from isotherm.experts.errors import CheckpointError, UnsupportedModelError
from isotherm.experts.model import Model, open_model
from safetensors.numpy import load_file, save_file
from support import tiny

PROMPT = [1, 2, 3, 100, 200, 7, 9, 250]
WHOLE_BLOCKS = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256, "head_dim": 64}


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_both_containers_give_the_same_weights(tmp_path, architecture):
    tiny.write_hf(tmp_path / "hf", architecture)
    tiny.write_gguf(tmp_path / "model.gguf", architecture)
    ours, theirs = (open_model(tmp_path / name).weights for name in ("hf", "model.gguf"))
    assert list(ours.roles) == list(theirs.roles)
    for role in ours.roles:
        np.testing.assert_array_equal(ours.dense(role), theirs.dense(role), err_msg=role)


def test_qk_biases_of_llama_are_put_in_order_too(tmp_path):
    tiny.write_hf(tmp_path / "hf", "llama", attention_bias=True)
    tiny.write_gguf(tmp_path / "model.gguf", "llama", attention_bias=True)
    ours, theirs = (open_model(tmp_path / name).weights for name in ("hf", "model.gguf"))
    for role in ("q_bias", "k_bias", "v_bias", "o_bias"):
        np.testing.assert_array_equal(ours.dense(f"layers.1.{role}"), theirs.dense(f"layers.1.{role}"))


def state(model: Any) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_dense_weights_are_the_values_in_the_folder(tmp_path, dtype):
    values = state(tiny.write_hf(tmp_path, "qwen2_moe", dtype))
    weights = open_model(tmp_path).weights
    layer = "model.layers.1."
    np.testing.assert_array_equal(weights.dense("layers.1.q_bias"), values[layer + "self_attn.q_proj.bias"])
    np.testing.assert_array_equal(
        weights.dense("layers.1.shared_gate"), values[layer + "mlp.shared_expert_gate.weight"]
    )
    gate, up = np.split(values[layer + "mlp.experts.gate_up_proj"], 2, axis=1)
    np.testing.assert_array_equal(weights.dense("layers.1.experts.gate"), gate)
    np.testing.assert_array_equal(weights.dense_expert("layers.1.experts.up", 5), up[5])
    assert weights.tensor("embed").format == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]


@pytest.mark.parametrize("quantisation", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_weights_are_the_values_in_the_file(tmp_path, quantisation):
    values = state(tiny.write_gguf(tmp_path / "m.gguf", "mixtral", quantisation))
    weights = open_model(tmp_path / "m.gguf").weights
    np.testing.assert_array_equal(weights.dense("layers.0.k"), values["model.layers.0.self_attn.k_proj.weight"])
    np.testing.assert_array_equal(
        weights.dense("layers.1.experts.down"), values["model.layers.1.mlp.experts.down_proj"]
    )
    assert weights.tensor("layers.0.k").format == quantisation
    assert weights.tensor("layers.0.router").format == "F32"


def stack_experts(folder: Path) -> None:
    """Rewrite a folder so that each bank is one tensor, gate above up."""
    tensors = load_file(folder / "model.safetensors")
    for layer in (0, 1):
        block = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: [tensors.pop(f"{block}{expert}.{part}_proj.weight") for expert in range(8)]
            for part in ("gate", "up", "down")
        }
        tensors[f"{block}gate_up_proj"] = np.concatenate([np.stack(parts["gate"]), np.stack(parts["up"])], axis=1)
        tensors[f"{block}down_proj"] = np.stack(parts["down"])
    save_file(tensors, folder / "model.safetensors")


def test_stacked_experts_equal_separate_ones(tmp_path):
    for name in ("separate", "stacked"):
        tiny.write_hf(tmp_path / name, "qwen3_moe")
    stack_experts(tmp_path / "stacked")
    separate, stacked = (open_model(tmp_path / name).weights for name in ("separate", "stacked"))
    for role in separate.roles:
        np.testing.assert_array_equal(separate.dense(role), stacked.dense(role), err_msg=role)
    for part in ("gate", "up", "down"):
        role = f"layers.1.experts.{part}"
        np.testing.assert_array_equal(separate.dense_expert(role, 7), stacked.dense_expert(role, 7))


def rewrite_gguf(
    path: Path, split: bool = False, drop: str = "", flat: str = "", part_size: int = 0, scale: str = ""
) -> Path:
    """A copy of a GGUF model: banks split by expert, a tensor left out, flattened or scaled, the file in parts."""
    reader = gguf.GGUFReader(path)
    target = path.with_name("rewritten.gguf")
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents(), split_max_tensors=part_size)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        if tensor.name == drop:
            continue
        if split and "_exps" in tensor.name:
            for expert, rows in enumerate(tensor.data):
                name = tensor.name.replace("_exps.", f".{expert}.")
                writer.add_tensor(name, rows, raw_dtype=tensor.tensor_type)
        else:
            data = tensor.data.reshape(-1) if tensor.name == flat else tensor.data
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    if scale:
        writer.add_tensor(scale, np.ones(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_old_gguf_with_a_tensor_per_expert(tmp_path):
    tiny.write_gguf(tmp_path / "model.gguf", "mixtral", "Q8_0")
    new = open_model(tmp_path / "model.gguf").weights
    old = open_model(rewrite_gguf(tmp_path / "model.gguf", split=True)).weights
    for role in new.roles:
        np.testing.assert_array_equal(new.dense(role), old.dense(role), err_msg=role)
    with pytest.raises(ValueError, match="a tensor for each expert"):
        old.tensor("layers.0.experts.gate")


def test_sharded_folder_and_split_file_equal_whole_ones(tmp_path):
    tiny.write_hf(tmp_path / "whole", "mixtral").save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    tiny.write_gguf(tmp_path / "model.gguf", "mixtral")
    rewrite_gguf(tmp_path / "model.gguf", part_size=8)
    whole = open_model(tmp_path / "whole").weights
    parts = sorted(tmp_path.glob("rewritten-*.gguf"))
    assert len(parts) > 2 and len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    for path in (tmp_path / "sharded", parts[1]):
        weights = open_model(path).weights
        for role in whole.roles:
            np.testing.assert_array_equal(weights.dense(role), whole.dense(role), err_msg=role)


@pytest.mark.parametrize("container", ["hf", "model.gguf"])
def test_tied_head_is_the_embedding(tmp_path, container):
    tiny.write_hf(tmp_path / "hf", "llama", tie_word_embeddings=True)
    tiny.write_gguf(tmp_path / "model.gguf", "llama", tie_word_embeddings=True)
    weights = open_model(tmp_path / container).weights
    assert weights.has("head") and weights.head_is_embedding
    assert np.shares_memory(weights.tensor("head").data, weights.tensor("embed").data)


def test_untied_head_is_its_own_tensor(tmp_path):
    tiny.write_hf(tmp_path, "llama")
    weights = open_model(tmp_path).weights
    assert not weights.head_is_embedding
    assert not np.shares_memory(weights.tensor("head").data, weights.tensor("embed").data)


def test_shape_of_a_bank_counts_the_experts(tmp_path):
    tiny.write_hf(tmp_path, "qwen2_moe")
    weights = open_model(tmp_path).weights
    assert weights.shape("layers.0.experts.down") == (8, 64, 64)
    assert weights.shape("layers.0.shared_gate") == (1, 64)


def test_tensors_are_views_on_the_file(tmp_path):
    tiny.write_hf(tmp_path, "qwen3_moe")
    stack_experts(tmp_path)
    model = open_model(tmp_path)
    stored = model.checkpoint.tensors["model.layers.0.mlp.experts.gate_up_proj"]
    assert np.shares_memory(model.weights.tensor("layers.0.experts.up").data, stored.data)
    assert np.shares_memory(model.weights.expert("layers.0.experts.up", 3).data, stored.data)


def test_roles_follow_the_layers(tmp_path):
    tiny.write_hf(tmp_path, "qwen3_moe", mlp_only_layers=[0])
    weights = open_model(tmp_path).weights
    assert weights.has("layers.0.gate") and not weights.has("layers.0.router")
    assert weights.has("layers.1.router") and not weights.has("layers.1.gate")
    assert not weights.has("layers.0.q_bias") and not weights.has("layers.2.q")


def change_folder(folder: Path, name: str, value: np.ndarray | None) -> Path:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    if value is not None:
        tensors[name] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.k_proj.bias",
        "model.layers.0.mlp.experts.3.up_proj.weight",
        "model.layers.1.mlp.shared_expert_gate.weight",
    ],
)
def test_missing_tensor_is_named_with_the_remedy(tmp_path, name):
    tiny.write_hf(tmp_path, "qwen2_moe")
    with pytest.raises(CheckpointError, match=rf"tensor '{name}' of shape .* is missing; .*download") as caught:
        open_model(change_folder(tmp_path, name, None))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.norm.weight", (65,), "(64,)"),
        ("model.layers.0.self_attn.q_proj.weight", (32, 64), "(64, 64)"),
        ("model.layers.0.mlp.experts.3.up_proj.weight", (64, 96), "(64, 64)"),
        ("model.layers.0.mlp.gate.weight", (512,), "(8, 64)"),
    ],
)
def test_misshapen_tensor_names_both_shapes(tmp_path, name, shape, expected):
    tiny.write_hf(tmp_path, "qwen2_moe")
    with pytest.raises(CheckpointError) as caught:
        open_model(change_folder(tmp_path, name, np.zeros(shape, np.float32)))
    text = str(caught.value)
    assert "model.safetensors" in text and f"{name!r} has the shape {shape}, {expected} expected" in text
    assert "download or convert" in text


def test_config_that_does_not_fit_the_weights_is_found(tmp_path):
    tiny.write_hf(tmp_path, "mixtral")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 400}))
    with pytest.raises(CheckpointError, match=r"'model.embed_tokens.weight' has the shape \(320, 64\), \(400, 64\)"):
        open_model(tmp_path)


def test_missing_gguf_tensor_is_named(tmp_path):
    tiny.write_gguf(tmp_path / "model.gguf", "qwen2_moe")
    path = rewrite_gguf(tmp_path / "model.gguf", drop="blk.1.attn_k.bias")
    with pytest.raises(CheckpointError, match=r"rewritten\.gguf: tensor 'blk.1.attn_k.bias' of shape \(32,\)"):
        open_model(path)


def test_misshapen_gguf_tensor_is_named(tmp_path):
    tiny.write_gguf(tmp_path / "model.gguf", "mixtral")
    path = rewrite_gguf(tmp_path / "model.gguf", flat="blk.0.ffn_gate_inp.weight")
    with pytest.raises(
        CheckpointError, match=r"'blk.0.ffn_gate_inp.weight' has the shape \(256,\), \(4, 64\) expected"
    ):
        open_model(path)


def test_a_tensor_with_a_factor_beside_it_is_refused(tmp_path):
    tiny.write_gguf(tmp_path / "model.gguf", "mixtral")
    path = rewrite_gguf(tmp_path / "model.gguf", scale="blk.1.ffn_up_exps.scale")
    with pytest.raises(
        UnsupportedModelError, match=r"'blk.1.ffn_up_exps.weight' is scaled by 'blk.1.ffn_up_exps.scale'"
    ):
        open_model(path)


def test_format_of_a_needed_tensor_must_be_supported(tmp_path):
    tiny.write_hf(tmp_path, "llama")
    value = np.zeros((64, 64), np.float64)
    with pytest.raises(
        UnsupportedModelError, match=r"'model.layers.0.self_attn.q_proj.weight' has the format F64.*F32"
    ):
        open_model(change_folder(tmp_path, "model.layers.0.self_attn.q_proj.weight", value))


# The tiny files against llama.cpp: names, row orders and encodings are those of real files.


def llama_cpp_logprobs(path: Path) -> dict[int, float]:
    """{token: log-probability} of the likeliest tokens after the prompt."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 256
    params.n_parallel = 1
    params.warmup = False
    params.cpuparams.n_threads = 1
    params.verbosity = -1
    request = {"prompt": PROMPT, "n_predict": 1, "temperature": 0, "n_probs": 20, "cache_prompt": False}
    answer = xllamacpp.Server(params).handle_completions(request)
    best = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return {entry["id"]: entry["logprob"] for entry in best}


def largest_difference(model: Any, path: Path) -> float:
    logits = tiny.logits(model, PROMPT)[-1].astype(np.float64)
    logprobs = logits - logits.max()
    logprobs -= math.log(np.exp(logprobs).sum())
    return max(abs(logprob - logprobs[token]) for token, logprob in llama_cpp_logprobs(path).items())


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_llama_cpp_reads_the_tiny_gguf(tmp_path, architecture):
    model = tiny.write_gguf(tmp_path / "m.gguf", architecture)
    assert largest_difference(model, tmp_path / "m.gguf") < 0.02  # its KV cache is float16


@pytest.mark.parametrize("quantisation", ["Q4_K", "Q5_K", "Q6_K"])
def test_llama_cpp_reads_the_tiny_k_quants(tmp_path, quantisation):
    model = tiny.write_gguf(tmp_path / "m.gguf", "qwen3_moe", quantisation, **WHOLE_BLOCKS)
    assert largest_difference(model, tmp_path / "m.gguf") < 0.3  # activations rounded to 8 bits
    opened: Model = open_model(tmp_path / "m.gguf")
    values = state(model)["model.layers.1.mlp.experts.down_proj"]
    np.testing.assert_array_equal(opened.weights.dense("layers.1.experts.down"), values)
