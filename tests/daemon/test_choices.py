"""What a runner tells of its choices is what the definition chooses, however the tokens were cut into steps."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.choices import Choices, StepRows
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import Model, open_model
from support.engines import engine, feed, lane
from support.recorded import choices_by_definition
from support.tiny import VOCAB_SIZE, write_hf

TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB_SIZE, 40)]
MODELS = {
    "mixtral": {},
    "qwen2_moe": {"num_hidden_layers": 4, "mlp_only_layers": [1]},
    "qwen3_moe": {"num_hidden_layers": 3, "mlp_only_layers": [2]},  # the last layer has no experts
    "olmoe": {},
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_hf(path, request.param, **MODELS[request.param])
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return open_model(folder)


@pytest.fixture(scope="module")
def runner(folder: Path) -> Iterator[DecoderRunner]:
    with engine(folder, threads=2) as runner:
        yield runner


def choices_of(runner: DecoderRunner) -> Choices:
    choices = runner.choices()
    assert choices is not None
    return choices


@pytest.mark.parametrize("sizes", [[40], [7, 1, 12, 20], [1] * 40], ids=str)
def test_choices_of_all_tokens_are_those_of_the_definition(
    sizes: list[int], runner: DecoderRunner, model: Model
) -> None:
    start, table, layers = 0, lane(runner), choices_by_definition(model, TOKENS)
    for size in sizes:
        feed(runner, TOKENS[start : start + size], start, table)
        choices = choices_of(runner)
        assert len(choices.ids) == len(choices.weights) == len(layers)
        last = len(layers) - 1 if choices.narrowed else len(layers)
        for layer, (ids, weights) in enumerate(layers[:last]):
            np.testing.assert_array_equal(choices.ids[layer], ids[start : start + size])
            np.testing.assert_allclose(choices.weights[layer], weights[start : start + size], rtol=1e-3)
        for ids, _ in layers[last:]:
            np.testing.assert_array_equal(choices.ids[-1, 0], ids[start + size - 1])
        start += size


def test_the_last_layer_is_narrowed_only_if_it_has_experts(runner: DecoderRunner, model: Model) -> None:
    feed(runner, TOKENS, 0, lane(runner))
    assert choices_of(runner).narrowed == model.spec.moe_layers[-1]


def test_prompts_and_decoded_tokens_of_one_step_are_told_apart(runner: DecoderRunner, model: Model) -> None:
    other, third = TOKENS[::-1], TOKENS[5:20]
    first_layers, other_layers, third_layers = (
        choices_by_definition(model, tokens) for tokens in (TOKENS, other, third)
    )
    feed(runner, TOKENS[:30], 0, lane(runner, 0))
    feed(runner, third[:14], 0, lane(runner, 2))
    chunks = (
        Chunk("decodes", TOKENS[30:31], 30, lane(runner, 0)[:2], True),
        Chunk("prompt", other[:25], 0, lane(runner, 1)[:2], False),
        Chunk("decodes too", third[14:15], 14, lane(runner, 2)[:1], True),
        Chunk("whole prompt", third[:9], 0, lane(runner, 3)[:1], True),
    )
    runner.execute(StepPlan(chunks))
    choices, rows = choices_of(runner), StepRows.of(chunks)
    decoded = choices.decode(rows)[0]
    prompts = choices.prefill(rows)[0]
    for layer in range(len(first_layers)):
        narrowed = choices.narrowed and layer == len(first_layers) - 1
        first, prompt, last = (layers[layer][0] for layers in (first_layers, other_layers, third_layers))
        np.testing.assert_array_equal(decoded[layer], [first[30], last[14]])
        wanted = last[8:9] if narrowed else np.concatenate((prompt[:25], last[:9]))
        np.testing.assert_array_equal(prompts[layer], wanted)


def test_a_single_token_decodes_only_after_others_and_with_its_logits_wanted() -> None:
    assert Chunk("a", [1], 5, (0,), True).decodes
    assert not Chunk("a", [1], 0, (0,), True).decodes  # a prompt of one token
    assert not Chunk("a", [1], 5, (0,), False).decodes  # a part of a prompt
    assert not Chunk("a", [1, 2], 5, (0,), True).decodes


def test_a_model_without_experts_has_no_choices(tmp_path: Path) -> None:
    write_hf(tmp_path, "llama")
    with engine(tmp_path) as runner:
        feed(runner, [1, 2], 0, lane(runner))
        assert runner.choices() is None
