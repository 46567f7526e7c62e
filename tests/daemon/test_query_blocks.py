"""Query blocks and pieces of a step: what is split, and that a split context gives the same bits."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from isotherm.cpu_kernels.attention import ALL_SEGMENTS
from isotherm.cpu_kernels.layout import KV_BLOCK, SEGMENT
from isotherm.daemon.query_blocks import lay_query_blocks
from isotherm.daemon.runner import DecoderRunner
from isotherm.daemon.step import Chunk
from isotherm.experts.step_inputs import StepInputs, StepLimits
from support.engines import engine, feed_by, lane
from support.tiny import VOCAB_SIZE, write_hf


def inputs(partials: int) -> StepInputs:
    return StepInputs(StepLimits(64, 8, 4 * SEGMENT // KV_BLOCK, partials))


def chunk(tokens: int, start: int) -> Chunk:
    return Chunk("a", [0] * tokens, start, range(-(-(start + tokens) // KV_BLOCK)), True)


def pieces(step: StepInputs, count: int) -> list[tuple[int, int]]:
    return list(zip(step.piece_block[:count].tolist(), step.piece_segment[:count].tolist(), strict=True))


def test_a_short_chunk_is_split_into_the_segments_of_its_context() -> None:
    step = inputs(partials=100)
    count = lay_query_blocks(step, [chunk(1, 2 * SEGMENT), chunk(1, SEGMENT - 1), chunk(3, SEGMENT - 1)])
    assert pieces(step, count) == [(0, 0), (0, 1), (0, 2), (1, ALL_SEGMENTS), (2, 0), (2, 1)]
    assert step.block_partial[[0, 2]].tolist() == [0, 3]
    assert step.block_count[:3].tolist() == [1, 1, 3]


def test_a_long_chunk_is_shared_by_its_query_blocks() -> None:
    step = inputs(partials=100)
    count = lay_query_blocks(step, [chunk(19, 2 * SEGMENT)])
    assert pieces(step, count) == [(0, ALL_SEGMENTS), (1, ALL_SEGMENTS), (2, ALL_SEGMENTS)]
    assert step.block_first[:3].tolist() == [0, 8, 16]
    assert step.block_count[:3].tolist() == [8, 8, 3]


def test_what_has_no_room_for_its_parts_is_left_whole() -> None:
    step = inputs(partials=6)
    count = lay_query_blocks(step, [chunk(2, SEGMENT), chunk(2, SEGMENT), chunk(1, SEGMENT)])
    assert pieces(step, count) == [(0, 0), (0, 1), (1, ALL_SEGMENTS), (2, 0), (2, 1)]
    assert step.block_partial[[0, 2]].tolist() == [0, 4]


def test_the_block_of_a_sampled_token_is_wanted() -> None:
    step = inputs(partials=100)
    lay_query_blocks(step, [replace(chunk(9, 0), sample=False), chunk(17, 0), chunk(1, 5)])
    assert step.block_wanted[:6].tolist() == [0, 0, 0, 0, 1, 1]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecoderRunner]:
    path = tmp_path_factory.mktemp("long")
    write_hf(path, "llama", max_position_embeddings=4 * SEGMENT)
    context = 2 * SEGMENT + 64
    with engine(path, threads=2, num_blocks=context // KV_BLOCK, max_context=context, kv_cache="int16") as runner:
        yield runner


def test_a_context_gives_the_same_bits_split_and_whole(runner: DecoderRunner) -> None:
    """The runner splits chunks of up to 8 tokens, and walks longer ones segment by segment."""
    tokens = [int(token) for token in np.random.default_rng(3).integers(0, VOCAB_SIZE, 2 * SEGMENT + 40)]
    whole = feed_by(runner, tokens, [64], lane(runner))
    cut = feed_by(runner, tokens, [60, 1, 3], lane(runner))
    both = whole.keys() & cut.keys()
    assert max(both) > 2 * SEGMENT
    for position in both:
        np.testing.assert_array_equal(cut[position], whole[position])
