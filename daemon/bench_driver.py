"""Driver: what `isotherm bench` has a runner do."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .step import Chunk, Runner, StepPlan

_SEED = 20_08


class Driver:
    """Runs steps over random tokens. Stream i owns the same blocks in every measurement."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._random = np.random.default_rng(_SEED)

    def prefill(self, streams: int, prompt: int) -> float:
        """Seconds to compute a fresh prompt of `prompt` tokens for each stream, in steps as full as they may be."""
        chunks = self._prompt_chunks(streams, prompt)
        started = time.perf_counter()
        for plan in pack_steps(chunks, self.runner.max_step_tokens, self.runner.block_size):
            self.runner.execute(plan)
        return time.perf_counter() - started

    def decode(self, streams: int, gen: int, start: int) -> float:
        """Seconds for `gen` more tokens of each stream, all in one step at a time, after `start` positions."""
        tokens = self._tokens(gen * streams).reshape(gen, streams)
        tables = self._tables(streams, start + gen)
        started = time.perf_counter()
        for i, row in enumerate(tokens):
            position = start + i
            blocks = position // self.runner.block_size + 1
            self.runner.execute(
                StepPlan(
                    tuple(Chunk(str(s), [int(row[s])], position, tables[s][:blocks], True) for s in range(streams))
                )
            )
        return time.perf_counter() - started

    def _prompt_chunks(self, streams: int, prompt: int) -> list[Chunk]:
        tables = self._tables(streams, prompt)
        return [Chunk(str(s), self._tokens(prompt).tolist(), 0, tables[s], True) for s in range(streams)]

    def _tokens(self, count: int) -> NDArray[np.int64]:
        return self._random.integers(0, self.runner.vocab_size, count)

    def _tables(self, streams: int, positions: int) -> list[list[int]]:
        each = self.runner.num_blocks // streams
        needed = -(-positions // self.runner.block_size)
        return [list(range(s * each, s * each + needed)) for s in range(streams)]


def pack_steps(chunks: Sequence[Chunk], max_tokens: int, block_size: int) -> list[StepPlan]:
    """Plans of at most `max_tokens` tokens that compute the chunks in order, cut where a step is full."""
    plans: list[StepPlan] = []
    current: list[Chunk] = []
    room = max_tokens
    for chunk in chunks:
        done = 0
        while done < len(chunk.tokens):
            if not room:
                plans.append(StepPlan(tuple(current)))
                current, room = [], max_tokens
            count = min(room, len(chunk.tokens) - done)
            end = done + count
            current.append(
                Chunk(
                    chunk.request_id,
                    chunk.tokens[done:end],
                    done,
                    chunk.block_table[: -(-end // block_size)],
                    end == len(chunk.tokens),
                )
            )
            room, done = room - count, end
    return [*plans, StepPlan(tuple(current))] if current else plans
