"""Where experts lie changes no bit of what a model says: not the share, not the devices, not moves between steps."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import Model, open_model
from support.engines import engine, greedy
from support.hybrid import LIMITS, Restless, emulated, hybrid, random_placement, residency_of
from support.tiny import VOCAB_SIZE, write_gguf, write_hf

# Every sort of record that experts read, a layer that is dense, and a shared expert.
FORMATS = {"mixtral": "Q4_0", "qwen2_moe": "Q8_0", "qwen3_moe": "F32", "olmoe": "F16"}
MIXED = {"": "Q8_0", "up_proj": "F16", "gate_proj": "Q4_1", "down_proj": "BF16"}
MODELS = (*FORMATS, "mixed", "dense layer")
GIB = 1 << 30
COUNT = 3
_RNG = np.random.default_rng(3)
PROMPTS = [[int(token) for token in _RNG.integers(0, VOCAB_SIZE, length)] for length in (19, 4, 1)]

Said = tuple[list[list[int]], np.ndarray, list[np.ndarray]]


def says(runner: DecoderRunner) -> Said:
    """Tokens, logits and the choices of the last step of three streams; then of a step that mixes a part of a prompt,
    a whole one and two streams."""
    tokens, rows = greedy(runner, PROMPTS, COUNT)
    tables = [(40 + 4 * n, 41 + 4 * n, 42 + 4 * n) for n in range(4)]
    runner.execute(StepPlan((Chunk("a", PROMPTS[0][:9], 0, tables[0], True),)))
    mixed = (
        Chunk("a", [5], 9, tables[0], True),
        Chunk("b", PROMPTS[0], 0, tables[1], False),
        Chunk("c", PROMPTS[1], 0, tables[2], True),
    )
    return tokens, rows, [runner.execute(StepPlan(mixed)).copy()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A tiny model by name; each written once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def write(name: str) -> Model:
        path: Path = folder / f"{name}.gguf"
        if name == "dense layer":
            path = folder / name
            write_hf(path, "qwen3_moe", num_hidden_layers=3, mlp_only_layers=[1])
        else:
            write_gguf(path, "qwen2_moe" if name == "mixed" else name, MIXED if name == "mixed" else FORMATS[name])
        return open_model(path)

    return write


@pytest.fixture(scope="module")
def alone(model: Callable[[str], Model]) -> Callable[[str], Said]:
    """What a model says on the CPU alone."""

    @cache
    def said(name: str) -> Said:
        with engine(model(name).checkpoint.path, **LIMITS) as runner:
            return says(runner)

    return said


def check(runner: DecoderRunner, expected: Said) -> None:
    tokens, rows, mixed = says(runner)
    assert tokens == expected[0]
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(mixed, expected[2])


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_any_share_of_experts_may_be_resident(
    name: str, share: float, model: Callable[[str], Model], alone: Callable[[str], Said]
) -> None:
    placement = random_placement(model(name).spec, [share], seed=1)
    with hybrid(model(name), placement, emulated(GIB, late=7)) as runner:
        check(runner, alone(name))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", MODELS)
def test_two_accelerators_of_unequal_size(
    name: str, seed: int, model: Callable[[str], Model], alone: Callable[[str], Said]
) -> None:
    placement = random_placement(model(name).spec, [0.5, 0.25], seed)
    with hybrid(model(name), placement, emulated(GIB, GIB // 64, late=seed)) as runner:
        assert {int(device) for where in placement.experts for device in where} == {-1, 0, 1}
        check(runner, alone(name))


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_swaps_before_every_step(
    name: str, wait: bool, model: Callable[[str], Model], alone: Callable[[str], Said]
) -> None:
    placement = random_placement(model(name).spec, [0.25, 0.25], seed=5)
    with hybrid(model(name), placement, emulated(GIB, GIB, late=3)) as runner:
        restless = Restless(runner, 11, wait=wait)
        check(restless, alone(name))  # type: ignore[arg-type]
        assert restless.swaps >= COUNT
        assert any(not np.array_equal(a, b) for a, b in zip(residency_of(runner).where, placement.experts, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(threads: int, model: Callable[[str], Model], alone: Callable[[str], Said]) -> None:
    placement = random_placement(model("qwen2_moe").spec, [0.5], seed=2)
    with hybrid(model("qwen2_moe"), placement, emulated(GIB), threads=threads) as runner:
        check(runner, alone("qwen2_moe"))


def test_choices_are_those_of_the_cpu(model: Callable[[str], Model]) -> None:
    opened = model("olmoe")
    step = StepPlan((Chunk("a", PROMPTS[0], 0, (0, 1, 2), False), Chunk("b", PROMPTS[1], 0, (3,), True)))
    with engine(opened.checkpoint.path, **LIMITS) as runner:
        runner.execute(step)
        expected = runner.choices()
        assert expected is not None
        ids, weights = expected.ids.copy(), expected.weights.copy()
    with hybrid(opened, random_placement(opened.spec, [0.5], seed=4), emulated(GIB)) as runner:
        runner.execute(step)
        got = runner.choices()
        assert got is not None
        for here, there in ((got.ids, ids), (got.weights, weights)):
            np.testing.assert_array_equal(here[:-1], there[:-1])
            np.testing.assert_array_equal(here[-1, :1], there[-1, :1])  # of the token that was sampled
