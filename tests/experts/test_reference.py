"""The definition against transformers on tiny random models, and its rules against answers worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from isotherm.experts.model import open_model
from isotherm.experts.reference import ReferenceDecoder, mix, route
from isotherm.experts.spec import RoutingSpec
from support.tiny import ARCHITECTURES, VOCAB_SIZE, write_gguf, write_hf

TOKENS = list(np.random.default_rng(0).integers(0, VOCAB_SIZE, 24))
# transformers keeps its norms and rotary angles in float32 even in a float64 model.
TOLERANCE = 1e-5

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "biases on q, k, v, o": ("llama", {"attention_bias": True}),
    "tied head": ("llama", {"tie_word_embeddings": True}),
    "llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "sliding window": ("mixtral", {"sliding_window": 5}),
    "renormalised": ("qwen2_moe", {"norm_topk_prob": True}),
    "not renormalised": ("qwen3_moe", {"norm_topk_prob": False}),
    "one layer dense": ("qwen2_moe", {"mlp_only_layers": [0]}),
    "clipped q, k, v": ("olmoe", {"clip_qkv": 0.5}),
}


def assert_same_logits(path: Path, model: Any) -> None:
    with torch.no_grad():
        model.set_experts_implementation("eager")  # the others are not made for float64
        expected = model.double()(torch.tensor([TOKENS])).logits[0].numpy()
    got = ReferenceDecoder(open_model(path)).logits(TOKENS)
    assert got.shape == (len(TOKENS), VOCAB_SIZE)
    assert np.abs(got - expected).max() < TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_transformers(architecture: str, tmp_path: Path) -> None:
    assert_same_logits(tmp_path, write_hf(tmp_path, architecture))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_from_gguf_equal_transformers(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    assert_same_logits(path, write_gguf(path, architecture, "Q8_0"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_variant_equal_transformers(variant: str, tmp_path: Path) -> None:
    architecture, overrides = VARIANTS[variant]
    assert_same_logits(tmp_path, write_hf(tmp_path, architecture, **overrides))


def test_later_tokens_change_nothing_before_them(tmp_path: Path) -> None:
    write_hf(tmp_path, "mixtral")
    decoder = ReferenceDecoder(open_model(tmp_path))
    np.testing.assert_allclose(decoder.logits(TOKENS)[:10], decoder.logits(TOKENS[:10]), rtol=1e-12, atol=1e-12)


def test_float32_stays_float32_and_close(tmp_path: Path) -> None:
    write_hf(tmp_path, "qwen2_moe")
    model = open_model(tmp_path)
    narrow = ReferenceDecoder(model, np.float32).logits(TOKENS)
    assert narrow.dtype == np.float32
    assert np.abs(narrow - ReferenceDecoder(model).logits(TOKENS)).max() < 1e-4 * np.abs(narrow).max()


def test_observer_sees_the_states_of_each_layer_in_order(tmp_path: Path) -> None:
    write_hf(tmp_path, "mixtral")
    seen: list[tuple[int, tuple[int, ...]]] = []
    ReferenceDecoder(open_model(tmp_path)).hidden(TOKENS, lambda layer, states: seen.append((layer, states.shape)))
    assert seen == [(0, (len(TOKENS), 64)), (1, (len(TOKENS), 64))]


@pytest.mark.parametrize("tokens", [[], [VOCAB_SIZE], [-1], [[1, 2]]])
def test_bad_tokens_are_refused(tokens: list[Any], tmp_path: Path) -> None:
    write_hf(tmp_path, "llama")
    with pytest.raises(ValueError, match="token"):
        ReferenceDecoder(open_model(tmp_path)).logits(tokens)


def test_forced_router_with_scaled_identity_experts() -> None:
    # Expert e returns (e + 1) x. Token 0 is sent to experts 2 and 0 by logits log 3 and log 1: (3 * 3 + 1 * 1) / 4 x.
    # Token 1 is sent to experts 3 and 1 by equal logits: (4 + 2) / 2 x.
    logits = np.array([[0.0, -9.0, np.log(3.0), -9.0], [-9.0, 5.0, -9.0, 5.0]])
    x = np.array([[1.0, -2.0], [4.0, 8.0]])
    experts, weights = route(logits, RoutingSpec(num_experts=4, top_k=2, score="softmax_top_k", renormalise=False))
    assert experts.tolist() == [[2, 0], [1, 3]]
    y = mix(x, experts, weights, lambda expert, rows: rows * (expert + 1))
    np.testing.assert_allclose(y, [[2.5, -5.0], [12.0, 24.0]])


LOGITS = np.log([[1.0, 4.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        (RoutingSpec(num_experts=4, top_k=2, renormalise=False), [0.4, 0.3]),
        (RoutingSpec(num_experts=4, top_k=2, renormalise=True), [4 / 7, 3 / 7]),
        (RoutingSpec(num_experts=4, top_k=2, score="softmax_top_k", renormalise=False), [4 / 7, 3 / 7]),
        (RoutingSpec(num_experts=4, top_k=2, renormalise=False, scale=2.5), [1.0, 0.75]),
    ],
)
def test_routing_weights(routing: RoutingSpec, expected: list[float]) -> None:
    experts, weights = route(LOGITS, routing)
    assert experts.tolist() == [[1, 3]]
    np.testing.assert_allclose(weights, [expected])


def test_equal_scores_go_to_the_lower_index() -> None:
    experts, _ = route(np.array([[1.0, 2.0, 2.0, 2.0, 1.0]]), RoutingSpec(num_experts=5, top_k=4))
    assert experts.tolist() == [[1, 2, 3, 0]]
