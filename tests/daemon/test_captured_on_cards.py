"""Decoding by the graphs of cards, which are played: the CPU's bits, or an error where a graph cannot have an op."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from isotherm.experts.errors import CacheLostError
from isotherm.experts.model import Model, open_model
from isotherm.gpu_kernels.cuda import Cuda
from isotherm.gpu_kernels.reference import TorchKernels
from isotherm.placement.placed import Placement
from isotherm.placement.shape import CPU
from support.decoded import assert_alike, decoding, logits_of
from support.engines import engine
from support.fake_cuda import CardKernels, FakeTorch
from support.hybrid import LIMITS, Restless, hybrid, placed
from support.tiny import write_gguf

LAYERS = 3
SOME, ALL = [0, CPU, 0, 0, CPU, 0, 0, CPU], [0] * 8
Logits = list[np.ndarray]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, "qwen2_moe", "Q8_0", num_hidden_layers=LAYERS)
    return open_model(path)


@pytest.fixture(scope="module")
def expected(model: Model) -> Logits:
    with engine(model.checkpoint.path, **LIMITS) as runner:
        return logits_of(runner, decoding())


@pytest.fixture
def fake() -> Iterator[FakeTorch]:
    played = FakeTorch(vram=1 << 26)
    yield played
    assert played.capturing is None


def where(model: Model, experts: list[int], dense: int) -> Placement:
    return placed(model.spec, [np.array(experts, np.int8)] * LAYERS, (dense,) * (LAYERS + 2))


@pytest.mark.parametrize("dense", [CPU, 0])
@pytest.mark.parametrize("experts", [SOME, ALL], ids=["some", "all"])
def test_graphs_have_the_bits_of_the_cpu(
    experts: list[int], dense: int, model: Model, expected: Logits, fake: FakeTorch
) -> None:
    card = Cuda(library=fake)
    with hybrid(model, where(model, experts, dense), [card], kernels=[CardKernels(fake)]) as runner:
        assert_alike(runner, decoding(), expected)
        captured, replays = len(fake.graphs), sum(graph.replays for graph in fake.graphs)
        assert captured > 0
        assert_alike(runner, decoding(), expected)
        assert len(fake.graphs) == captured
        steps, whole = len(decoding()), dense == 0 and experts == ALL
        more = sum(graph.replays for graph in fake.graphs) - replays
        assert more == steps if whole else more > steps * (LAYERS - 1)


@pytest.mark.parametrize("dense", [CPU, 0])
def test_graphs_see_experts_that_were_swapped(dense: int, model: Model, expected: Logits, fake: FakeTorch) -> None:
    with hybrid(model, where(model, SOME, dense), [Cuda(library=fake)], kernels=[CardKernels(fake)]) as runner:
        for seed in range(3):
            assert_alike(Restless(runner, seed, wait=True), decoding(), expected)  # type: ignore[arg-type]


def test_kernels_that_wait_are_launched_one_by_one(model: Model, expected: Logits, fake: FakeTorch) -> None:
    told: list[str] = []
    placement = where(model, SOME, 0)
    card = Cuda(library=fake)
    with hybrid(
        model, placement, [card], kernels=[TorchKernels()], note=lambda name, detail: told.append(name)
    ) as runner:
        assert_alike(runner, decoding(), expected)
    assert told == ["launched_one_by_one"]
    assert not fake.graphs


class Careless(CardKernels):
    """Says that it does not wait, and does."""

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(TorchKernels, name)


def test_a_card_whose_kernels_no_graph_can_have_is_lost_and_the_cpu_goes_on(
    model: Model, expected: Logits, fake: FakeTorch
) -> None:
    card = Cuda(library=fake)
    with hybrid(model, where(model, SOME, 0), [card], kernels=[Careless(fake)]) as runner:
        with pytest.raises(CacheLostError, match="not permitted when stream is capturing"):
            runner.execute(decoding()[0])
        assert_alike(runner, decoding(), expected)
        assert card.used_bytes == 0
