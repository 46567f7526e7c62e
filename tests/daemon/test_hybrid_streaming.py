"""Experts that are streamed for a step change no bit, and are streamed where, and only where, they should be."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.acceleration import Stream
from isotherm.experts.errors import DeviceFullError
from isotherm.experts.model import Model, open_model
from isotherm.experts.streaming import Streaming
from isotherm.placement.shape import CPU
from support.engines import engine
from support.hybrid import LIMITS, emulated, hybrid, random_placement
from support.tiny import VOCAB_SIZE, write_gguf

GIB = 1 << 30
PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB_SIZE, 40)]


@pytest.fixture(scope="module", params=["qwen2_moe", "mixtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, request.param, {"": "Q8_0", "down_proj": "F16"}, num_hidden_layers=3)
    return open_model(path)


def said(runner: DecoderRunner) -> list[np.ndarray]:
    """Logits after a prompt beside another, after a token more, and after another long chunk."""
    first = StepPlan((Chunk("a", PROMPT, 0, (0, 1, 2), True), Chunk("b", PROMPT[:9], 0, (3,), True)))
    rows = [runner.execute(first).copy()]
    rows.append(runner.execute(StepPlan((Chunk("a", [3], 40, (0, 1, 2), True),))).copy())
    rows.append(runner.execute(StepPlan((Chunk("b", PROMPT[9:30], 9, (3, 4), True),))).copy())
    return rows


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layer and number of experts of each time that some were."""
    seen: list[tuple[int, int]] = []
    banks = Streaming.banks

    def counted(self, layer, experts):  # type: ignore[no-untyped-def]
        if experts:
            seen.append((layer, len(experts)))
        return banks(self, layer, experts)

    monkeypatch.setattr(Streaming, "banks", counted)
    return seen


@pytest.mark.parametrize("shares", [[0.0], [0.5], [0.25, 0.5]])
@pytest.mark.parametrize("home", [CPU, 0])
@pytest.mark.parametrize("slots", [1, 3])
def test_streaming_changes_no_bit(
    slots: int, home: int, shares: list[float], model: Model, streamed: list[tuple[int, int]]
) -> None:
    with engine(model.checkpoint.path, **LIMITS) as runner:
        expected = said(runner)
    placement = random_placement(model.spec, shares, seed=1, dense=[home] * 5)
    accelerators = emulated(*(GIB for _ in shares), late=4)
    streams = {0: Stream(dict.fromkeys(range(3), 20), slots)}
    with hybrid(model, placement, accelerators, streams) as runner:
        for got, wanted in zip(said(runner), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    # in the last layer only one or two tokens matter
    assert [layer for layer, _ in streamed] == [0, 1, 0, 1]


def test_below_the_break_even_nothing_is_streamed(model: Model, streamed: list[tuple[int, int]]) -> None:
    placement = random_placement(model.spec, [0.5], seed=1)
    with hybrid(model, placement, emulated(GIB), {0: Stream(dict.fromkeys(range(3), 64))}) as runner:
        said(runner)
    assert streamed == []


def test_only_layers_that_are_named_are_streamed(model: Model, streamed: list[tuple[int, int]]) -> None:
    placement = random_placement(model.spec, [0.5], seed=1)
    with hybrid(model, placement, emulated(GIB), {0: Stream({1: 20})}) as runner:
        said(runner)
    assert [layer for layer, _ in streamed] == [1, 1]


def test_a_staging_that_does_not_fit_is_refused(model: Model) -> None:
    placement, roomy = random_placement(model.spec, [0.5], seed=1), emulated(GIB)
    with hybrid(model, placement, roomy):
        needed = roomy[0].used_bytes
    accelerators = emulated(needed + 1000)
    refused = pytest.raises(DeviceFullError, match="make a plan for less memory")
    with refused, hybrid(model, placement, accelerators, {0: Stream({1: 20})}):
        pass
    assert accelerators[0].used_bytes == 0
