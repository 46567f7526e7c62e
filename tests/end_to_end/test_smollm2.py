"""A real model, SmolLM2-135M-Instruct, in our engine and in llama.cpp, and the demo mixture made from it.

Both programs round activations to int8 where weights are quantised. In this model that moves log-probabilities by 0.06
on average, whoever rounds, because a last bit decides between two codes and the difference spreads through 30 layers.
So tokens are compared in two ways: closely on the same weights written out as float32, where nobody rounds; and on the
file as it is within that noise, which must not be larger than llama.cpp's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from isotherm.experts.formats import dequantise
from isotherm.experts.model import open_model
from support.demo_model import demo_path, demo_tokenizer
from support.engines import Logits, engine, feed, greedy, lane
from support.oracle import Completion, llama_server, log_softmax
from support.vocab import smollm2_path

COUNT = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "def fibonacci(n):",
    "The quick brown fox",
    "In 1969, the first human",
    "Water boils at a temperature of",
    "Dear Sir or Madam,",
    "The most important ingredient of bread is",
    "Question: What is 2 + 2?\nAnswer:",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
]
CLOSE = 0.05  # of the judge's two best log-probabilities: a tie for all that matters
# Three times the spread of the gap between two tokens when both sides carry noise of 0.08 in each of the two.
WITHIN_NOISE = 0.5


@dataclass(frozen=True)
class Text:
    """What the engine wrote, and its logits at each token."""

    tokens: list[int]
    rows: Logits


def prompts() -> list[list[int]]:
    return [demo_tokenizer().encode(text, add_special=False) for text in PROMPTS]


def written_by_engine(path: Path) -> list[Text]:
    with engine(path, num_blocks=80, threads=2, kv_cache="f16") as runner:
        texts, rows = greedy(runner, prompts(), COUNT)
    return [Text(*pair) for pair in zip(texts, rows, strict=True)]


def written_by_llama_cpp(path: Path) -> list[Completion]:
    with llama_server(path) as server:
        return [server.complete(prompt, COUNT, top=5) for prompt in prompts()]


def first_gap(ours: list[int], judged: Completion) -> float:
    """The gap between the judge's two best log-probabilities where the texts part; 0 where they do not."""
    for mine, theirs, best in zip(ours, judged.tokens, judged.top, strict=False):
        if mine != theirs:
            return best[0][1] - best[1][1]
    return 0.0


@pytest.fixture(scope="module")
def float_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same weights as float32: 540 MB, gone after the tests."""
    path = tmp_path_factory.mktemp("float") / "smollm2.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for field in gguf.GGUFReader(smollm2_path()).fields.values():
        if not field.name.startswith(("GGUF.", "general.")):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for name, tensor in open_model(smollm2_path()).checkpoint.tensors.items():
        writer.add_tensor(name, dequantise(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def exact(float_path: Path) -> list[Text]:
    return written_by_engine(float_path)


@pytest.fixture(scope="module")
def dense() -> list[Text]:
    return written_by_engine(smollm2_path())


@pytest.fixture(scope="module")
def judged() -> list[Completion]:
    return written_by_llama_cpp(smollm2_path())


def test_with_float_weights_the_tokens_are_those_of_llama_cpp(float_path: Path, exact: list[Text]) -> None:
    for ours, theirs in zip(exact, written_by_llama_cpp(float_path), strict=True):
        assert first_gap(ours.tokens, theirs) < CLOSE


def test_with_quantised_weights_the_tokens_part_within_the_noise(dense: list[Text], judged: list[Completion]) -> None:
    gaps = [first_gap(ours.tokens, theirs) for ours, theirs in zip(dense, judged, strict=True)]
    assert max(gaps) < WITHIN_NOISE


def test_the_noise_is_no_larger_than_that_of_llama_cpp(exact: list[Text], judged: list[Completion]) -> None:
    """Errors of the two best log-probabilities: ours along the exact text, theirs as far as they write it."""
    ours, theirs = [], []
    with engine(smollm2_path(), threads=2, kv_cache="f16") as runner:
        table = lane(runner)
        for prompt, text, judgement in zip(prompts(), exact, judged, strict=True):
            expected = log_softmax(text.rows)
            row = feed(runner, prompt, 0, table)
            for index, token in enumerate(text.tokens):
                best = np.argsort(-expected[index])[:2]
                ours += list(np.abs(log_softmax(row) - expected[index])[best])
                row = feed(runner, [token], len(prompt) + index, table)
            for index, token in enumerate(judgement.tokens):
                theirs += [abs(logprob - expected[index, one]) for one, logprob in judgement.top[index][:2]]
                if token != text.tokens[index]:
                    break
    assert len(theirs) > 100
    assert np.mean(ours) < 1.3 * np.mean(theirs)


def test_the_demo_mixture_gives_the_dense_logits_bit_for_bit(dense: list[Text]) -> None:
    """Its experts are equal and their weights add up to one."""
    for mixture, text in zip(written_by_engine(demo_path()), dense, strict=True):
        assert mixture.tokens == text.tokens
        np.testing.assert_array_equal(mixture.rows, text.rows)
