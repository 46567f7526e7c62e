"""Rows of prompts by the real engine: the bits that decoding gives, and the states of the definition."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import Model, open_model
from isotherm.experts.reference import ReferenceDecoder
from isotherm.gpu_kernels.emulated import Emulated
from isotherm.placement.shape import CPU
from support.engines import engine, feed, lane
from support.hybrid import emulated, hybrid, random_placement
from support.tiny import VOCAB_SIZE, write_gguf

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCAB_SIZE, 45)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_gguf(path, "qwen2_moe", "Q8_0")
    return open_model(path)


@pytest.fixture(scope="module")
def runner(model: Model) -> Iterator[DecoderRunner]:
    with engine(Path(model.checkpoint.path), threads=2, num_blocks=80, max_context=80) as runner:
        yield runner


def rows_of(runner: DecoderRunner, size: int, name: str):
    """Of all positions of the prompt, in chunks of a size, beside another request that samples."""
    table, other = lane(runner, 0), lane(runner, 1)
    rows = []
    for start in range(0, len(PROMPT), size):
        tokens = PROMPT[start : start + size]
        blocks = table[: -(-(start + len(tokens)) // runner.block_size)]
        chunk = Chunk("a", tokens, start, blocks, False, **{name: len(tokens)})
        mate = Chunk("b", PROMPT[:3], 0, other[:1], True)
        logits = runner.execute(StepPlan((chunk, mate) if start % 2 else (mate, chunk)))
        rows.append((logits[:-1] if start % 2 else logits[1:]).copy() if name == "scored" else runner.states())
    return np.concatenate(rows)


@pytest.mark.parametrize("size", [1, 7, 16, 45])
def test_scored_rows_are_those_of_decoding(runner: DecoderRunner, size: int) -> None:
    table = lane(runner, 2)
    one_by_one = [feed(runner, [token], position, table) for position, token in enumerate(PROMPT)]
    np.testing.assert_array_equal(rows_of(runner, size, "scored"), np.stack(one_by_one))


@pytest.mark.parametrize("size", [1, 7, 16])
def test_states_do_not_depend_on_chunks(runner: DecoderRunner, size: int) -> None:
    np.testing.assert_array_equal(rows_of(runner, size, "states"), rows_of(runner, 45, "states"))


def test_states_are_those_of_the_definition(runner: DecoderRunner, model: Model) -> None:
    expected = ReferenceDecoder(model).hidden(PROMPT)
    states = rows_of(runner, 45, "states")
    closeness = (states * expected).sum(axis=1) / np.linalg.norm(states, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(closeness) > 0.999
    assert closeness.min() > 0.9  # rounding may send a token to another expert


@pytest.mark.parametrize("dense", [(CPU, CPU, 0, 0), (0, 0, 0, CPU), (CPU, 0, CPU, 0)])
def test_rows_where_layers_lie_on_accelerators(model: Model, runner: DecoderRunner, dense: tuple[int, ...]) -> None:
    dense = (dense[0], *dense[1:3], *(dense[2],) * (model.spec.num_layers - 2), dense[3])
    placement = random_placement(model.spec, [0.5], 1, dense=dense)
    devices: tuple[Emulated, ...] = emulated(1 << 26)
    with hybrid(model, placement, devices, threads=2) as there:
        size = 45 if dense[-1] == CPU else 7  # a head that lies there gives fewer rows
        for name in ("scored", "states"):
            expected = rows_of(runner, size, name)
            np.testing.assert_allclose(rows_of(there, size, name), expected, rtol=0.02, atol=0.05)


def test_more_rows_than_there_are_is_refused(model: Model) -> None:
    with engine(Path(model.checkpoint.path), max_step_tokens=128, max_running=2) as small:
        chunk = Chunk("a", [1] * 65, 0, lane(small)[:5], False, scored=65)
        with pytest.raises(ValueError, match="65 rows of logits exceeds the runner's 64"):
            small.execute(StepPlan((chunk,)))
