"""What changes from step to step, at fixed addresses: the arrays that a recorded program reads."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import STEP_SLOTS
from ..cpu_kernels.layout import KV_BLOCK

Indices = NDArray[np.int64]
LEAST_ROWS = 64  # of logits: fewer would make the tokens of a prompt slow where all are wanted


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step: tokens, sequences, rows of logits and blocks per sequence.

    partials: (token, segment) pairs of which attention can hold the parts while several workers share a context.
    """

    tokens: int
    sequences: int
    blocks_per_sequence: int
    partials: int = 512

    @property
    def rows(self) -> int:
        """Of logits: one of each sequence, or those of part of a prompt."""
        return max(self.sequences, LEAST_ROWS)

    @property
    def positions(self) -> int:
        """Positions of a sequence that its blocks hold."""
        return self.blocks_per_sequence * KV_BLOCK


@dataclass(slots=True)
class StepInputs:
    """counts: by `descriptor` slot. Per token: tokens, positions, slots (block * KV_BLOCK + offset), and the row of its
    sequence in `tables`.

    logit_rows: token rows whose logits are wanted, then those whose states are. Per query block: first token row,
    number of tokens, address of its sequence's block table, where its parts lie if it is split, and whether it has a
    row that is wanted. Per piece: its query block and segment.
    """

    limits: StepLimits
    counts: Indices = field(init=False)
    tokens: Indices = field(init=False)
    positions: Indices = field(init=False)
    slots: Indices = field(init=False)
    sequence: Indices = field(init=False)
    logit_rows: Indices = field(init=False)
    block_first: Indices = field(init=False)
    block_count: Indices = field(init=False)
    block_table: Indices = field(init=False)
    block_partial: Indices = field(init=False)
    block_wanted: Indices = field(init=False)
    piece_block: Indices = field(init=False)
    piece_segment: Indices = field(init=False)
    tables: Indices = field(init=False)  # [sequences, blocks_per_sequence]

    def __post_init__(self) -> None:
        most = self.limits
        self.counts = np.zeros(STEP_SLOTS, np.int64)
        for name in ("tokens", "positions", "slots", "sequence"):
            setattr(self, name, np.zeros(most.tokens, np.int64))
        for name in ("block_first", "block_count", "block_table", "block_partial", "block_wanted"):
            setattr(self, name, np.zeros(most.tokens, np.int64))
        for name in ("piece_block", "piece_segment"):
            setattr(self, name, np.zeros(most.tokens + most.partials, np.int64))
        self.logit_rows = np.zeros(most.tokens, np.int64)
        self.tables = np.zeros((most.sequences, most.blocks_per_sequence), np.int64)
