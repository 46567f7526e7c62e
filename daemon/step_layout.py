"""StepLayout: lays a StepPlan out in the arrays that a recorded program reads."""

from collections.abc import Sequence

from ..cpu_kernels.descriptor import N_HEAD, N_LOGITS, N_PIECES, N_TOKENS
from ..cpu_kernels.layout import KV_BLOCK, SEGMENT
from ..experts.step_inputs import StepInputs
from .query_blocks import lay_query_blocks
from .step import Chunk, StepPlan
from .step_rows import RowLimits


class StepLayout:
    """Writes what differs from the last step: while the same streams decode, a token, its place and now and then a
    block for each. It stores plain numbers through plain views: a step ends with cold caches, in which each call of an
    array library costs more than the loops here.

    num_blocks, vocab_size, max_context: what ids of blocks and of tokens must lie below, and positions. rows: of
    logits, at most; where states are rows the head is run for them too.
    """

    def __init__(
        self,
        inputs: StepInputs,
        *,
        num_blocks: int,
        vocab_size: int,
        max_context: int,
        rows: RowLimits,
    ) -> None:
        self.inputs, self.states = inputs, 0
        self._limits = rows
        self._num_blocks, self._vocab_size, self._max_context = num_blocks, vocab_size, max_context
        self._tokens, self._positions, self._slots = inputs.tokens.data, inputs.positions.data, inputs.slots.data
        self._tables = [table.data for table in inputs.tables]
        self._laid: list[list[int]] = [[] for _ in self._tables]  # what the tables begin with, checked
        self._shape: list[tuple[int, int, int, int]] = []  # of each chunk: tokens, last segment, rows of logits, states
        self._rows = 0

    def lay(self, plan: StepPlan) -> int:
        """Fill the arrays; the number of rows of logits. That of states is in `states` then.

        Raises ValueError for a plan outside the limits, before anything is written.
        """
        tables = self._checked_tables(plan)
        for row, table in enumerate(tables):
            self._lay_table(row, table)
        self._lay_tokens(plan.chunks, tables)
        shape = [(len(c.tokens), (c.start + len(c.tokens) - 1) // SEGMENT, c.rows, c.states) for c in plan.chunks]
        if shape != self._shape:
            self._rows = self._lay_shape(plan.chunks)
            self._shape = shape
        return self._rows

    def _checked_tables(self, plan: StepPlan) -> list[list[int]]:
        """The tables of all chunks. Kernels trust the step's arrays: what is out of range here would be read or
        written outside their memory."""
        limits = self.inputs.limits
        if plan.num_tokens > limits.tokens or len(plan.chunks) > limits.sequences:
            raise ValueError(
                f"a step of {plan.num_tokens} tokens in {len(plan.chunks)} chunks exceeds the runner's "
                f"{limits.tokens} tokens in {limits.sequences}"
            )
        rows = sum(chunk.rows + (chunk.states if self._limits.states_are_rows else 0) for chunk in plan.chunks)
        if rows > self._limits.rows:
            raise ValueError(f"a step that wants {rows} rows of logits exceeds the runner's {self._limits.rows}")
        tables = []
        for chunk, laid in zip(plan.chunks, self._laid, strict=False):
            table = list(chunk.block_table)
            self._check_lengths(chunk)
            _check_ids(chunk, "token", chunk.tokens, self._vocab_size)
            if table != laid:
                _check_ids(chunk, "block", table, self._num_blocks)
            tables.append(table)
        return tables

    def _check_lengths(self, chunk: Chunk) -> None:
        if (chunk.rows and chunk.states) or max(chunk.rows, chunk.states) > len(chunk.tokens):
            raise ValueError(
                f"{chunk.request_id}: {chunk.rows} rows of logits and {chunk.states} states are not to be had of "
                f"{len(chunk.tokens)} tokens"
            )
        end, length = chunk.start + len(chunk.tokens), len(chunk.block_table)
        if not 0 <= chunk.start < end <= self._max_context:
            raise ValueError(
                f"{chunk.request_id}: {len(chunk.tokens)} tokens at position {chunk.start} do not lie within the "
                f"runner's context of {self._max_context}"
            )
        most = self.inputs.limits.blocks_per_sequence
        if not -(-end // KV_BLOCK) <= length <= most:
            raise ValueError(
                f"{chunk.request_id}: a table of {length} blocks does not fit {end} positions; it needs "
                f"{-(-end // KV_BLOCK)} to {most} blocks of {KV_BLOCK}"
            )

    def _lay_table(self, row: int, table: list[int]) -> None:
        laid, view = self._laid[row], self._tables[row]
        if table == laid:
            return
        known = len(laid) if table[: len(laid)] == laid else 0
        for i in range(known, len(table)):
            view[i] = table[i]
        self._laid[row] = table

    def _lay_tokens(self, chunks: Sequence[Chunk], tables: list[list[int]]) -> None:
        tokens, positions, slots = self._tokens, self._positions, self._slots
        row = 0
        for chunk, table in zip(chunks, tables, strict=True):
            for position, token in enumerate(chunk.tokens, chunk.start):
                tokens[row], positions[row] = token, position
                slots[row] = table[position // KV_BLOCK] * KV_BLOCK + position % KV_BLOCK
                row += 1

    def _lay_shape(self, chunks: Sequence[Chunk]) -> int:
        """What follows from the numbers of tokens and of segments alone."""
        inputs, first = self.inputs, 0
        rows: list[int] = []
        states: list[int] = []
        for sequence, chunk in enumerate(chunks):
            inputs.sequence[first : first + len(chunk.tokens)] = sequence
            first += len(chunk.tokens)
            rows += range(first - chunk.rows, first)
            states += range(first - chunk.states, first)
        both = len(rows) + len(states)
        inputs.logit_rows[:both] = rows + states
        head = both if self._limits.states_are_rows else len(rows)
        pieces = lay_query_blocks(inputs, chunks)
        inputs.counts[[N_TOKENS, N_LOGITS, N_PIECES, N_HEAD]] = first, both, pieces, head
        self.states = len(states)
        return len(rows)


def _check_ids(chunk: Chunk, what: str, ids: Sequence[int], count: int) -> None:
    if min(ids) < 0 or max(ids) >= count:
        raise ValueError(f"{chunk.request_id}: {what} ids must be 0 to {count - 1}, not {min(ids)} to {max(ids)}")
