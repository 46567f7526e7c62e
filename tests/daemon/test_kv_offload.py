"""Accelerators with fewer KV blocks than there are logical ones: blocks go to RAM and back, and no answer changes."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from isotherm.cpu_kernels.kv_layout import KvCache
from isotherm.daemon.runner import DecoderRunner
from isotherm.experts.hybrid_executor import HybridExecutor
from isotherm.experts.kv_store import kv_block_bytes
from isotherm.experts.model import Model, open_model
from isotherm.placement.shape import CPU
from support.engines import engine
from support.hybrid import LIMITS, emulated, hybrid, random_placement
from support.serving import Bench, make_submit
from support.tiny import VOCAB_SIZE, write_gguf

GIB = 1 << 30
KINDS = get_args(KvCache)
_RNG = np.random.default_rng(8)
TALKS = [[int(token) for token in _RNG.integers(0, VOCAB_SIZE, length)] for length in (37, 50, 19, 44)]
TURNS, COUNT = 3, 5

Said = dict[str, list[int]]


def talk(runner: DecoderRunner) -> tuple[Said, Bench]:
    """Conversations that are taken up again in turn, each with what was said so far; the last ones two at a time."""
    bench, known = Bench(runner), [list(talk) for talk in TALKS]  # type: ignore[arg-type]
    for turn in range(TURNS):
        for number, tokens in enumerate(known):
            bench.submit(make_submit(f"{turn}.{number}", tokens, max_tokens=COUNT))
            if turn < TURNS - 1 or number % 2:
                bench.run()
                runner.check_integrity(bench.pool.cached_blocks)
        for number, tokens in enumerate(known):
            tokens += [*bench.texts[f"{turn}.{number}"], 7, number, 9]
    return bench.texts, bench


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_gguf(path, "qwen3_moe", "Q4_0", num_hidden_layers=3)
    return open_model(path)


@pytest.fixture(scope="module")
def expected(model: Model) -> Callable[[str], Said]:
    """What is said on the CPU alone, by the kind of the KV cache."""

    @cache
    def said(kind: str) -> Said:
        with engine(model.checkpoint.path, **LIMITS | {"kv_cache": kind}) as runner:
            return talk(runner)[0]

    return said


def offloading(model: Model, dense: Sequence[int], kv_blocks: Sequence[int], **others: Any) -> Any:
    """A runner with dense parts and half the experts on accelerators of unequal size."""
    shares = [0.5 / len(kv_blocks)] * len(kv_blocks)
    cards = emulated(*(GIB // 8**number for number in range(len(kv_blocks))), late=6)
    placement = random_placement(model.spec, shares, 4, dense=dense)
    return hybrid(model, placement, cards, kv_blocks=kv_blocks, **others)


def moved(runner: DecoderRunner) -> list[tuple[int, int]]:
    assert isinstance(runner.executor, HybridExecutor)
    return [(kv.offloaded, kv.brought_back) for kv in runner.executor.kv.values()]


@pytest.mark.parametrize(
    ("dense", "kv_blocks"),
    [([0] * 5, [6]), ([CPU, 0, CPU, 0, CPU], [5]), ([0, 1, 0, CPU, 1], [7, 5])],
    ids=["all on one", "some layers", "two of unequal size"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_conversations_that_are_taken_up_again_go_on_as_on_the_cpu(
    kind: str, dense: list[int], kv_blocks: list[int], model: Model, expected: Callable[[str], Said]
) -> None:
    with offloading(model, dense, kv_blocks, kv_cache=kind) as runner:
        assert runner.num_resident == min(kv_blocks)
        said, bench = talk(runner)
        assert said == expected(kind)
        assert bench.pool.num_hit_tokens >= 6 * 32
        assert all(offloaded > 8 and back > 8 for offloaded, back in moved(runner))
