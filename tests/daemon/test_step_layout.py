"""The layout of steps: what is kept from the step before makes no difference."""

import random

import numpy as np
import pytest
from isotherm.cpu_kernels.descriptor import N_LOGITS, N_PIECES, N_TOKENS
from isotherm.cpu_kernels.layout import KV_BLOCK, QUERY_BLOCK, SEGMENT
from isotherm.daemon.step import Chunk, StepPlan
from isotherm.daemon.step_layout import StepLayout
from isotherm.daemon.step_rows import RowLimits
from isotherm.experts.step_inputs import StepInputs, StepLimits

CONTEXT = 3 * SEGMENT
LIMITS = StepLimits(tokens=64, sequences=6, blocks_per_sequence=CONTEXT // KV_BLOCK, partials=20)
VOCABULARY, BLOCKS = 100, 5000


def layout() -> StepLayout:
    return StepLayout(
        StepInputs(LIMITS), num_blocks=BLOCKS, vocab_size=VOCABULARY, max_context=CONTEXT, rows=RowLimits(LIMITS.rows)
    )


def what_kernels_read(layout: StepLayout, plan: StepPlan) -> dict[str, list[int]]:
    """All that the program looks at in such a step; the addresses of tables as their rows."""
    inputs = layout.inputs
    tokens, pieces = int(inputs.counts[N_TOKENS]), int(inputs.counts[N_PIECES])
    blocks = sum(-(-len(chunk.tokens) // QUERY_BLOCK) for chunk in plan.chunks)
    split = np.unique(inputs.piece_block[:pieces][inputs.piece_segment[:pieces] >= 0])
    read = {name: getattr(inputs, name)[:tokens].tolist() for name in ("tokens", "positions", "slots")}
    read |= {name: getattr(inputs, name)[:blocks].tolist() for name in ("block_first", "block_count", "block_wanted")}
    read |= {name: getattr(inputs, name)[:pieces].tolist() for name in ("piece_block", "piece_segment")}
    read["rows"] = inputs.logit_rows[: inputs.counts[N_LOGITS]].tolist()
    read["table_of_block"] = (
        (inputs.block_table[:blocks] - inputs.tables.ctypes.data) // inputs.tables.strides[0]
    ).tolist()
    read["block_partial"] = inputs.block_partial[split].tolist()
    for row, chunk in enumerate(plan.chunks):
        read[f"table {row}"] = inputs.tables[row, : len(chunk.block_table)].tolist()
    return read


class _Stream:
    """A sequence that gets blocks as it grows, sometimes another one's first blocks, and is now and then replaced."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.done = chance, chance.choice([0, 5, SEGMENT - 20, 2 * SEGMENT - 20])
        self.blocks = [chance.randrange(BLOCKS) for _ in range(-(-self.done // KV_BLOCK))]

    def chunk(self, count: int) -> Chunk:
        end = self.done + count
        self.blocks += [self.chance.randrange(BLOCKS) for _ in range(-(-end // KV_BLOCK) - len(self.blocks))]
        tokens = [self.chance.randrange(VOCABULARY) for _ in range(count)]
        chunk = Chunk("a", tokens, self.done, self.blocks[: -(-end // KV_BLOCK)], self.chance.random() < 0.9)
        self.done = end
        return chunk


@pytest.mark.parametrize("seed", range(8))
def test_a_step_after_others_is_laid_out_like_a_first_one(seed: int) -> None:
    chance = random.Random(seed)
    used, streams = layout(), [_Stream(chance) for _ in range(3)]
    for _ in range(60):
        if chance.random() < 0.1:
            streams[chance.randrange(len(streams))] = _Stream(chance)
        if chance.random() < 0.1:
            chance.shuffle(streams)
        if chance.random() < 0.1:  # two of them begin with the same blocks
            streams[0].blocks[:4] = streams[-1].blocks[:4]
        if chance.random() < 0.1 and len(streams) < LIMITS.sequences:
            streams.append(_Stream(chance))
        if chance.random() < 0.1 and len(streams) > 1:
            streams.pop()
        plan = StepPlan(tuple(stream.chunk(chance.choice([1, 1, 1, 1, 1, 1, 9])) for stream in streams))
        fresh = layout()
        assert used.lay(plan) == fresh.lay(plan) == sum(chunk.sample for chunk in plan.chunks)
        assert what_kernels_read(used, plan) == what_kernels_read(fresh, plan)


def test_a_slot_is_a_place_in_a_block() -> None:
    laid = layout()
    laid.lay(StepPlan((Chunk("a", [7, 8, 9], KV_BLOCK - 1, [4, 2], False), Chunk("b", [3], 0, (1,), True))))
    assert laid.inputs.slots[:4].tolist() == [5 * KV_BLOCK - 1, 2 * KV_BLOCK, 2 * KV_BLOCK + 1, KV_BLOCK]
    assert laid.inputs.positions[:4].tolist() == [KV_BLOCK - 1, KV_BLOCK, KV_BLOCK + 1, 0]
    assert laid.inputs.tokens[:4].tolist() == [7, 8, 9, 3]
    assert laid.inputs.logit_rows[0] == 3


@pytest.mark.parametrize("table", [[1, 2, BLOCKS], [1, 2, -1], [BLOCKS, 2, 3]])
def test_what_is_new_in_a_known_table_is_checked(table: list[int]) -> None:
    laid = layout()
    laid.lay(StepPlan((Chunk("a", [1], 2 * KV_BLOCK - 1, [1, 2], True),)))
    before = laid.inputs.tables.copy()
    with pytest.raises(ValueError, match="a: block ids must be 0 to"):
        laid.lay(StepPlan((Chunk("a", [1], 2 * KV_BLOCK, table, True),)))
    np.testing.assert_array_equal(laid.inputs.tables, before)
