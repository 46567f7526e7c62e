"""The whole engine against its judges, on tiny random models of every architecture.

With float weights the judge is transformers in float32. With quantised weights there are two judges: the reference with
the engine's own rounding, which shows a wrong kernel, and transformers on the dequantised weights, which shows what the
rounding costs. llama.cpp reads the same files.
"""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.daemon.runner import DecoderRunner
from isotherm.experts.errors import UnsupportedModelError
from isotherm.experts.formats import FORMATS
from support import tiny
from support.blocks import GGUF_FORMATS
from support.engines import engine, feed, feed_by, lane
from support.judges import GROWTH, check_quantised
from support.oracle import errors, llama_server, log_softmax
from support.tiny import ARCHITECTURES, VOCAB_SIZE, write_gguf, write_hf

PROMPT = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB_SIZE, 37)]
NUM_DECODED = 16
CUTS = (7, 1, 16, 9)
QUANTISED = [name for name in GGUF_FORMATS if name not in ("F32", "F16")]
COMMON = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def cases(names: Iterable[str]) -> list[tuple[str, str]]:
    """Common formats with every architecture, the others with one."""
    return [(a, name) for name in names for a in (ARCHITECTURES if name in COMMON else ("qwen3_moe",))]


Written = Callable[[str, str], tuple[Path, Any]]
WIDE = {"hidden_size": 256, "intermediate_size": 256}  # K formats need rows of whole 256-blocks
WIDE_OWN = {
    "qwen2_moe": {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256},
    "qwen3_moe": {"moe_intermediate_size": 256, "head_dim": 64},
}


def prompt_and_decoded(runner: DecoderRunner) -> tuple[list[int], dict[int, Any]]:
    """Logits by position: of the prompt's chunks' ends, and of each decoded token but the last."""
    table, tokens = lane(runner), list(PROMPT)
    rows = feed_by(runner, tokens, CUTS, table)
    for position in range(len(PROMPT), len(PROMPT) + NUM_DECODED):
        tokens.append(int(rows[position - 1].argmax()))
        rows[position] = feed(runner, tokens[-1:], position, table)
    return tokens, rows


def relative_errors(rows: dict[int, Any], expected: Any) -> Any:
    """Of the positions in `rows`."""
    return errors(np.stack(list(rows.values())), expected[list(rows)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32_weights_give_the_logits_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = write_hf(tmp_path, architecture)
    with engine(tmp_path, threads=2) as runner:
        tokens, rows = prompt_and_decoded(runner)
    assert relative_errors(rows, tiny.logits(model, tokens)).max() < 1e-5


def rope(kind: str, **rest: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **rest}}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "biases on q, k, v, o": ("llama", {"attention_bias": True}),
    "tied head": ("llama", {"tie_word_embeddings": True}),
    "one key and value head": ("llama", {"num_key_value_heads": 1}),
    "widths off the grid": ("llama", {"hidden_size": 100, "intermediate_size": 90, "head_dim": 24}),
    "linear rope": ("llama", rope("linear")),
    "llama3 rope": ("llama", rope("llama3", **LLAMA3)),
    "yarn rope": ("qwen3_moe", rope("yarn", original_max_position_embeddings=32)),
    "sliding window": ("mixtral", {"sliding_window": 5}),
    "one expert each": ("mixtral", {"num_experts_per_tok": 1}),
    "all experts": ("olmoe", {"num_experts_per_tok": 8, "norm_topk_prob": True}),
    "renormalised": ("qwen2_moe", {"norm_topk_prob": True}),
    "not renormalised": ("qwen3_moe", {"norm_topk_prob": False}),
    "one layer dense": ("qwen2_moe", {"mlp_only_layers": [0]}),
    "clipped q, k, v": ("olmoe", {"clip_qkv": 0.5}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_give_the_logits_of_transformers(variant: str, tmp_path: Path) -> None:
    architecture, overrides = VARIANTS[variant]
    model = write_hf(tmp_path, architecture, **overrides)
    with engine(tmp_path) as runner:
        tokens, rows = prompt_and_decoded(runner)
    assert relative_errors(rows, tiny.logits(model, tokens)).max() < 1e-5


def test_a_head_of_an_odd_size_is_refused(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama", head_dim=20)
    with pytest.raises(UnsupportedModelError, match="heads of 20 elements"), engine(tmp_path):
        pass


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float16_weights_give_the_logits_of_transformers_in_float32(architecture: str, tmp_path: Path) -> None:
    """Activations stay float32, so the weights' own rounding, which both sides have, is all there is."""
    model = write_hf(tmp_path, architecture, "float16")
    with engine(tmp_path) as runner:
        tokens, rows = prompt_and_decoded(runner)
    assert relative_errors(rows, tiny.logits(model, tokens)).max() < 1e-5


# float16 rounds a number by up to 2^-12 of itself, bfloat16 by 2^-9, int16 by 2^-14 and int8 by 2^-8 of the largest in
# its group. Two layers make it about twice as much; the rest is room for other models.
KV_ERRORS = {"f16": 1e-3, "bf16": 8e-3, "int16": 5e-4, "int8": 3e-2}


@pytest.mark.parametrize("kind", KV_ERRORS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_rounded_cache_costs_its_rounding_only(architecture: str, kind: str, tmp_path: Path) -> None:
    model = write_hf(tmp_path, architecture)
    with engine(tmp_path, kv_cache=kind) as runner:
        tokens, rows = prompt_and_decoded(runner)
    found = np.median(relative_errors(rows, tiny.logits(model, tokens)))
    assert KV_ERRORS[kind] / 10 < found < KV_ERRORS[kind]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """GGUF files by architecture and format, with the transformers model of the same weights; each written once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def write(architecture: str, name: str) -> tuple[Path, Any]:
        path = folder / f"{architecture}-{name}.gguf"
        sizes = WIDE | WIDE_OWN.get(architecture, {}) if FORMATS[name].block > 32 else {}
        return path, write_gguf(path, architecture, name, **sizes)

    return write


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_weights_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = write_hf(tmp_path, architecture, "bfloat16")
    check_quantised(tmp_path, model, FORMATS["BF16"].product_error)


@pytest.mark.parametrize("architecture, name", cases(QUANTISED))
def test_quantised_weights(architecture: str, name: str, written: Written) -> None:
    path, model = written(architecture, name)
    check_quantised(path, model, FORMATS[name].product_error)


MIXES = {
    "as Q4_K_M": {"": "Q4_K", "v_proj": "Q6_K", "down_proj": "Q6_K", "lm_head": "Q6_K"},
    "many": {"": "Q4_1", "embed": "F16", "k_proj": "BF16", "v_proj": "Q5_0", "o_proj": "F32", "down_proj": "Q5_1"},
    "floats among codes": {"": "Q8_0", "lm_head": "BF16", "gate_proj": "F16", "down_proj": "F32"},
    "codes among floats": {"": "F16", "lm_head": "Q6_K", "up_proj": "Q4_0", "down_proj": "Q4_K"},
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_formats_mix_by_tensor(architecture: str, mix: str, tmp_path: Path) -> None:
    path, formats = tmp_path / "mixed.gguf", MIXES[mix]
    model = write_gguf(path, architecture, formats, **WIDE | WIDE_OWN.get(architecture, {}))
    check_quantised(path, model, max(FORMATS[name].product_error for name in formats.values()))


# llama.cpp multiplies float32 exactly, and rounds activations to the weights' type for F16 and BF16 and to int8 for the
# others: in groups of 32, or of 256 for the K formats, where we take spans of 64. So both sides' errors add up.
LLAMA_ERROR = {"F32": 5e-7, "F16": 2.0**-12} | {
    name: FORMATS[name].product_error * (1.5 if FORMATS[name].block == 256 else 1) for name in QUANTISED
}
LLAMA_BUDGET = {name: 1.5 * GROWTH * error for name, error in LLAMA_ERROR.items()}
NOT_ASCII = [index for index, token in enumerate(tiny.tokens()) if not token.isascii() or token in tiny.SPECIALS]


@pytest.mark.parametrize("architecture, name", cases(LLAMA_BUDGET))
def test_log_probabilities_of_llama_cpp(architecture: str, name: str, written: Written) -> None:
    path, _ = written(architecture, name)
    with llama_server(path, exact=True) as server:
        judged = server.complete(PROMPT, NUM_DECODED, VOCAB_SIZE, banned=NOT_ASCII)
    assert len(judged.tokens) == NUM_DECODED
    with engine(path) as runner:
        table = lane(runner)
        rows = [feed(runner, PROMPT, 0, table)]
        for position, token in enumerate(judged.tokens[:-1], len(PROMPT)):
            rows.append(feed(runner, [token], position, table))
    expected = np.array([[logprob for _, logprob in sorted(best)] for best in judged.top])
    found = errors(centred(log_softmax(np.stack(rows))), centred(expected))
    assert np.median(found) < LLAMA_BUDGET[name]


def centred(logprobs: Any) -> Any:
    """Without the part that all tokens share, so that errors are relative to the spread."""
    return logprobs - logprobs.mean(axis=-1, keepdims=True)
