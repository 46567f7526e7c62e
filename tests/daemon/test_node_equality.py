"""A model gives the same bits however its weights and workers are spread over memory nodes and cores."""

from pathlib import Path

import numpy as np
import pytest
from isotherm.cpu_kernels.seating import Affinity, Seating
from isotherm.daemon.runner import load_runner
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.experts.model import open_model
from numpy.typing import NDArray
from support.machines import nodes_here, same_affinity
from support.tiny import VOCAB_SIZE, write_gguf, write_hf

PROMPT = np.random.default_rng(3).integers(0, VOCAB_SIZE, 21).tolist()
WIDE = {"hidden_size": 256, "intermediate_size": 160, "moe_intermediate_size": 160}  # more than one node's share


def logits(path: Path, threads: int | Seating) -> NDArray[np.float32]:
    """Of a prompt's end and of two tokens after it."""
    runner = load_runner(open_model(path), threads=threads, num_blocks=4, max_context=64)
    plans = [(PROMPT, 0), ([7], len(PROMPT)), ([8], len(PROMPT) + 1)]
    try:
        with same_affinity():
            rows = [
                runner.execute(StepPlan((Chunk("a", tokens, start, [2, 1], True),)))[0].copy()
                for tokens, start in plans
            ]
    finally:
        runner.close()
    return np.stack(rows)


@pytest.fixture(scope="module", params=["llama", "mixtral Q4_0", "qwen2_moe Q8_0", "olmoe tied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture, *kind = request.param.split()
    folder = tmp_path_factory.mktemp("model")
    if kind in ([], ["tied"]):
        write_hf(folder, architecture, tie_word_embeddings=kind == ["tied"], **WIDE)
        return folder
    write_gguf(folder / "tiny.gguf", architecture, *kind, **WIDE)
    return folder / "tiny.gguf"


@pytest.fixture(scope="module")
def expected(model: Path) -> NDArray[np.float32]:
    rows = logits(model, 1)
    assert np.isfinite(rows).all() and rows.std() > 0
    return rows


@pytest.mark.parametrize(
    ("nodes", "threads", "affinity"), [(2, 2, "none"), (2, 3, "cores"), (3, 4, "none"), (2, 1, "none"), (1, 2, "cores")]
)
def test_nodes_and_affinity_change_no_bit(
    model: Path, expected: NDArray[np.float32], nodes: int, threads: int, affinity: Affinity
) -> None:
    np.testing.assert_array_equal(logits(model, Seating(threads, nodes_here(nodes), affinity)), expected)


def test_other_numbers_of_threads_read_the_same_shares(model: Path, expected: NDArray[np.float32]) -> None:
    """Fewer threads than nodes take all of the shares, more sit at nodes that have none."""
    topology = nodes_here(3)
    runner = load_runner(open_model(model), threads=Seating(2, topology), num_blocks=4, max_context=64)
    plan = StepPlan((Chunk("a", PROMPT, 0, [2, 1], True),))
    try:
        for threads in (1, 2, 5):
            other = runner.on_threads(threads)
            with same_affinity():
                np.testing.assert_array_equal(other.execute(plan)[0], expected[0])
            other.close()
    finally:
        runner.close()
