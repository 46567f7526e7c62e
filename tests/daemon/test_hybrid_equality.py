"""Where experts lie changes no bit of what a model says: not the share, not the devices, not moves between steps."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import Model, open_model
from isotherm.placement.shape import CPU
from support.engines import engine, greedy
from support.hybrid import LIMITS, Restless, emulated, hybrid, random_placement, residency_of
from support.mapped_arena import mapped_weights, small_pages
from support.tiny import VOCAB_SIZE, write_gguf, write_hf

# Every sort of record that experts read, a layer that is dense, and a shared expert.
FORMATS = {"llama": "Q4_1", "mixtral": "Q4_0", "qwen2_moe": "Q8_0", "qwen3_moe": "F32", "olmoe": "F16"}
MIXED = {"": "Q8_0", "up_proj": "F16", "gate_proj": "Q4_1", "down_proj": "BF16"}
MODELS = (*FORMATS, "mixed", "dense layer")
SPARSE = MODELS[1:]
KV_CACHES = {"llama": "int8", "mixtral": "int16", "qwen2_moe": "bf16", "qwen3_moe": "f32", "olmoe": "f16"}
GIB = 1 << 30
COUNT = 3
_RNG = np.random.default_rng(3)
PROMPTS = [[int(token) for token in _RNG.integers(0, VOCAB_SIZE, length)] for length in (19, 4, 1)]

Said = tuple[list[list[int]], np.ndarray, np.ndarray, list[np.ndarray]]


def says(runner: DecoderRunner) -> Said:
    """Tokens and logits of three streams; then logits and choices of a step that mixes parts of prompts with what
    decodes."""
    tokens, rows = greedy(runner, PROMPTS, COUNT)
    tables = [(40 + 4 * n, 41 + 4 * n, 42 + 4 * n) for n in range(4)]
    runner.execute(StepPlan((Chunk("a", PROMPTS[0][:9], 0, tables[0], True),)))
    mixed = (
        Chunk("a", [5], 9, tables[0], True),
        Chunk("b", PROMPTS[0], 0, tables[1], False),
        Chunk("c", PROMPTS[1], 0, tables[2], True),
    )
    logits = runner.execute(StepPlan(mixed)).copy()
    return tokens, rows, logits, chosen(runner, len(logits))


def chosen(runner: DecoderRunner, sampled: int) -> list[np.ndarray]:
    """Experts and weights of the last step, by layer; where it is narrowed, only of tokens that were sampled."""
    choices = runner.choices()
    if choices is None:
        return []
    last = sampled if choices.narrowed else None
    return [
        part.copy()
        for all_layers in (choices.ids, choices.weights)
        for part in (*all_layers[:-1], all_layers[-1, :last])
    ]


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
        with engine(model(name).checkpoint.path, **limits_of(name)) as runner:
            return says(runner)

    return said


def limits_of(name: str) -> dict[str, Any]:
    return LIMITS | {"kv_cache": KV_CACHES.get(name, "f32")}


def check(runner: DecoderRunner, expected: Said) -> None:
    tokens, rows, mixed, choices = says(runner)
    assert tokens == expected[0]
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(mixed, expected[2])
    for got, wanted in zip(choices, expected[3], strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.fixture
def same(model: Callable[[str], Model], alone: Callable[[str], Said]) -> Callable[..., None]:
    """Runs a model by name on as many accelerators as there are shares, and compares."""

    def run(name: str, shares: Sequence[float], seed: int, **placing: Any) -> None:
        placement = random_placement(model(name).spec, shares, seed, **placing)
        accelerators = emulated(*(GIB // 8**number for number in range(len(shares))), late=seed)
        with hybrid(model(name), placement, accelerators, **limits_of(name)) as runner:
            check(runner, alone(name))

    return run


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("name", SPARSE)
def test_any_share_of_experts_may_be_resident(name: str, share: float, same: Callable[..., None]) -> None:
    same(name, [share], seed=1)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_dense_parts_may_be_resident_with_any_share_of_experts(
    name: str, share: float, model: Callable[[str], Model], same: Callable[..., None]
) -> None:
    same(name, [share], seed=2, dense=[0] * (model(name).spec.num_layers + 2))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", MODELS)
def test_any_placement_on_two_accelerators_of_unequal_size(name: str, seed: int, same: Callable[..., None]) -> None:
    first, second, _ = np.random.default_rng(seed).dirichlet((1, 1, 1))
    same(name, [first, second], seed=seed, anywhere=seed > 4)


@pytest.mark.parametrize("home", [CPU, 0])
def test_swaps_of_experts_that_give_their_memory_back(
    home: int,
    model: Callable[[str], Model],
    alone: Callable[[str], Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their weights are mapped from a store, and come from there when the CPU computes them again."""
    small_pages(monkeypatch)
    opened = model("qwen3_moe")
    placement = random_placement(opened.spec, [0.5], seed=6, dense=[home] * (opened.spec.num_layers + 2))
    limits = limits_of("qwen3_moe") | {"weights": mapped_weights(opened, tmp_path)}
    with hybrid(opened, placement, emulated(GIB, late=2), **limits) as runner:
        restless = Restless(runner, 12, wait=True)
        residency = residency_of(runner)
        assert residency.given_back_bytes > 0
        check(restless, alone("qwen3_moe"))  # type: ignore[arg-type]
        assert restless.swaps >= COUNT and residency.given_back_bytes > 0


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("home", [CPU, 0])
@pytest.mark.parametrize("name", SPARSE)
def test_swaps_before_every_step(
    name: str, home: int, wait: bool, model: Callable[[str], Model], alone: Callable[[str], Said]
) -> None:
    spec = model(name).spec
    placement = random_placement(spec, [0.25, 0.25], seed=5, dense=[home] * (spec.num_layers + 2))
    with hybrid(model(name), placement, emulated(GIB, GIB, late=3), **limits_of(name)) as runner:
        restless = Restless(runner, 11, wait=wait)
        check(restless, alone(name))  # type: ignore[arg-type]
        assert restless.swaps >= COUNT
        assert any(not np.array_equal(a, b) for a, b in zip(residency_of(runner).where, placement.experts, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(threads: int, model: Callable[[str], Model], alone: Callable[[str], Said]) -> None:
    placement = random_placement(model("qwen2_moe").spec, [0.5], seed=2)
    limits = limits_of("qwen2_moe") | {"threads": threads}
    with hybrid(model("qwen2_moe"), placement, emulated(GIB), **limits) as runner:
        check(runner, alone("qwen2_moe"))


@pytest.mark.parametrize("home", [CPU, 0])
def test_a_step_without_samples_fills_the_cache(home: int, model: Callable[[str], Model]) -> None:
    """Nobody's logits are wanted, and so in the last layer nobody's experts are."""
    opened = model("qwen2_moe")

    def later(runner: DecoderRunner) -> np.ndarray:
        assert runner.execute(StepPlan((Chunk("a", PROMPTS[0], 0, (0, 1), False),))).shape == (0, VOCAB_SIZE)
        return runner.execute(StepPlan((Chunk("a", [7], len(PROMPTS[0]), (0, 1), True),))).copy()

    with engine(opened.checkpoint.path, **LIMITS) as runner:
        expected = later(runner)
    placement = random_placement(opened.spec, [0.5], seed=4, dense=[home] * (opened.spec.num_layers + 2))
    with hybrid(opened, placement, emulated(GIB, late=1)) as runner:
        np.testing.assert_array_equal(later(runner), expected)
