"""Tiny random models of every architecture, in both containers, with a byte-level tokenizer that both can carry."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType
from support.blocks import encode
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ARCHITECTURES = ("llama", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
GGUF_NAMES = {"llama": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "olmoe": "olmoe"}
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "t h", "i n", "e r", "a n", "o n", "e n", "r e", "o r", "i t", "a t", "e s", "o u", "i s", "a r", "s t", "l l",
    "th e", "Ġ t", "Ġ a", "Ġ s", "Ġ w", "Ġ o", "Ġ b", "Ġ c", "Ġ i", "Ġ the", "Ġ in", "Ġ an", "an d", "Ġan d", "in g",
    "er e", "Ġ h", "Ġ m", "Ġ f", "Ġ p", "Ġ d", "l e", "v e", "h e", "Ġ l", "Ġ is", "Ġ re", "i on", "c h", "o w", "e d",
    "a l", "r o", "i c", "Ġ n", "Ġ y", "Ġy ou", "o m", "l o", "e l", "Ġh e", "Ġw h", "Ġ g", "u t", "k e",
)  # fmt: skip
VOCAB_SIZE = 256 + len(MERGES) + len(SPECIALS)  # 320
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def config(architecture: str, **overrides: Any) -> transformers.PretrainedConfig:
    """A small config: sizes are multiples of 32, so that 32-blocks fit every matrix."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": VOCAB_SIZE - 1,
        "pad_token_id": None,
        **_OWN[architecture],
        **overrides,
    }
    return transformers.AutoConfig.for_model(architecture, **values)


_OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
    },
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "head_dim": 32,
        "norm_topk_prob": True,
        "rope_theta": 1e6,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4},
}


def build(architecture: str, seed: int = 0, **overrides: Any) -> Any:
    """A float32 transformers model with random weights, norms and biases, far enough from zero for spread logits."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config(architecture, **overrides), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
            elif parameter.ndim == 1:
                torch.nn.init.normal_(parameter, std=0.3)
            elif "embed_tokens" in name:
                torch.nn.init.normal_(parameter, std=1.0)
            else:
                torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
    return model.eval()


def write_hf(path: Path, architecture: str, dtype: str = "float32", seed: int = 0, **overrides: Any) -> Any:
    """Write a safetensors folder with tokenizer; returns the transformers model (float32) with the written weights."""
    model = build(architecture, seed, **overrides).to(getattr(torch, dtype))
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    write_tokenizer(path)
    # Read again, since the conversion has also rounded the angles of rope.
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logits(model: Any, tokens: list[int]) -> np.ndarray:
    """float32 (tokens, vocabulary) of the transformers model."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


def tokens() -> list[str]:
    """The vocabulary by id: 256 bytes, the merges, the specials."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*alphabet, *(merge.replace(" ", "") for merge in MERGES), *SPECIALS]


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of the tiny vocabulary."""
    vocabulary = {token: index for index, token in enumerate(tokens()[: -len(SPECIALS)])}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIALS[2],
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


Formats = str | Mapping[str, str]


def write_gguf(path: Path, architecture: str, quantisation: Formats = "F32", seed: int = 0, **overrides: Any) -> Any:
    """Write a .gguf file; returns the float32 transformers model whose weights are those in the file, dequantised.

    Matrices get the format, or of several the last whose key is part of their name; norms, biases and routers stay F32.
    gate_up is one matrix here. K formats need rows of whole 256-blocks (overrides).
    """
    model = build(architecture, seed, **overrides)
    writer = _open_writer(path, architecture, model.config)
    for name, parameter in model.named_parameters():
        kind = _kind(name, parameter, quantisation)
        data = encode(parameter.detach().numpy(), kind.name)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(gguf.quants.dequantize(data, kind).astype(np.float32)))
        for new_name, rows in _gguf_rows(architecture, model.config, name, data):
            writer.add_tensor(new_name, np.ascontiguousarray(rows), raw_dtype=kind)
    _write(writer)
    return model


def write_blank_gguf(path: Path, architecture: str, quantisation: str, **overrides: Any) -> None:
    """As `write_gguf` with nothing but zeros, and quick at any size."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config(architecture, **overrides))
    writer = _open_writer(path, architecture, model.config)
    for name, parameter in model.named_parameters():
        kind = _kind(name, parameter, quantisation)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((*parameter.shape[:-1], parameter.shape[-1] // block * size), np.uint8)
        for new_name, rows in _gguf_rows(architecture, model.config, name, data):
            writer.add_tensor(new_name, np.ascontiguousarray(rows), raw_dtype=kind)
    _write(writer)


def _open_writer(path: Path, architecture: str, cfg: Any) -> gguf.GGUFWriter:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, GGUF_NAMES[architecture])
    _write_keys(writer, architecture, cfg)
    _write_vocabulary(writer)
    return writer


def _kind(name: str, parameter: torch.Tensor, quantisation: Formats) -> GGMLQuantizationType:
    if parameter.ndim == 1 or name.endswith(("mlp.gate.weight", "mlp.shared_expert_gate.weight")):
        return GGMLQuantizationType.F32
    if isinstance(quantisation, str):
        return GGMLQuantizationType[quantisation]
    return GGMLQuantizationType[[kind for part, kind in quantisation.items() if part in name][-1]]


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_keys(writer: gguf.GGUFWriter, architecture: str, cfg: Any) -> None:
    head_dim = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
    writer.add_name(f"tiny-{architecture}")
    writer.add_block_count(cfg.num_hidden_layers)
    writer.add_context_length(cfg.max_position_embeddings)
    writer.add_embedding_length(cfg.hidden_size)
    writer.add_feed_forward_length(cfg.intermediate_size)
    writer.add_head_count(cfg.num_attention_heads)
    writer.add_head_count_kv(cfg.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    writer.add_vocab_size(cfg.vocab_size)
    if architecture == "llama":
        return
    writer.add_expert_count(cfg.num_local_experts if architecture == "mixtral" else cfg.num_experts)
    writer.add_expert_used_count(cfg.num_experts_per_tok)
    if architecture in ("qwen2_moe", "qwen3_moe"):
        writer.add_expert_feed_forward_length(cfg.moe_intermediate_size)
    if architecture == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(cfg.shared_expert_intermediate_size)
    if getattr(cfg, "clip_qkv", None) is not None:
        writer.add_clamp_kqv(cfg.clip_qkv)


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    special = len(SPECIALS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens())
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCAB_SIZE - special) + [gguf.TokenType.CONTROL] * special)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(VOCAB_SIZE - 3)
    writer.add_eos_token_id(VOCAB_SIZE - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


_SIMPLE = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_rows(architecture: str, cfg: Any, name: str, data: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """A parameter's GGUF tensors: (name, rows). Only whole rows are moved, so `data` may be quantised already."""
    if name in _TOP:
        return [(_TOP[name], data)]
    _, _, layer, rest = name.split(".", 3)
    block = f"blk.{layer}."
    if rest == "mlp.experts.gate_up_proj":
        gate, up = np.split(data, 2, axis=1)
        return [(block + "ffn_gate_exps.weight", gate), (block + "ffn_up_exps.weight", up)]
    if rest == "mlp.experts.down_proj":
        return [(block + "ffn_down_exps.weight", data)]
    old = next(key for key in sorted(_SIMPLE, key=len, reverse=True) if rest.startswith(key))
    new = rest.replace(old, _SIMPLE[old])
    if GGUF_NAMES[architecture] == "llama" and new.startswith(("attn_q.", "attn_k.")):
        data = adjacent_pairs(data, cfg.num_attention_heads if "_q" in new else cfg.num_key_value_heads)
    return [(block + new, data.reshape(-1) if new == "ffn_gate_inp_shexp.weight" else data)]


def adjacent_pairs(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows from half-split to adjacent-pair rope order, as the GGUF files of llama and mixtral have them."""
    return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
