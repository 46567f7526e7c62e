"""FakeRunner: a model whose logits are a hash of everything that it reads back through the block tables.

As in a real model, what is stored for a token depends on its position and on all tokens before it; so a stale block,
a wrong position, a lost write or a wrong prefix hit changes the output.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

import numpy as np
from isotherm.daemon.step import Chunk, StepPlan
from numpy.typing import NDArray

_MASK = 2**64 - 1


def _mix(state: int, token: int, position: int) -> int:
    """What is stored at `position`, given what is stored one position before."""
    x = (state ^ (token + 1) * 0x9E3779B97F4A7C15 ^ (position + 1) * 0xC2B2AE3D27D4EB4F) & _MASK
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9 & _MASK
    return x ^ x >> 29


def _logits(states: NDArray[np.uint64], vocab_size: int) -> NDArray[np.float32]:
    seed = int.from_bytes(blake2b(states.tobytes(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).standard_normal(vocab_size, dtype=np.float32)


class InjectedFailureError(RuntimeError):
    """The failure that a test has asked for."""


class FakeRunner:
    """Implements `daemon.step.Runner`. Call number n (from 1) raises InjectedFailureError if n is in `fail_calls`."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        num_resident: int | None = None,
        block_size: int = 4,
        vocab_size: int = 64,
        max_step_tokens: int = 64,
        max_context: int = 256,
        latency_s: float = 0.0,
        fail_calls: Collection[int] = (),
    ) -> None:
        self.num_blocks = num_blocks
        self.num_resident = num_blocks if num_resident is None else num_resident
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_step_tokens = max_step_tokens
        self.max_context = max_context
        self.latency_s = latency_s
        self.fail_calls = fail_calls
        self.num_calls = 0
        self.num_tokens = 0  # computed by all calls
        self.closed = False
        self._store: NDArray[np.uint64] = np.zeros((num_blocks, block_size), np.uint64)

    def forget(self) -> None:
        """What was stored is gone."""
        self._store[:] = 0

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        if self.closed:
            raise RuntimeError("the runner is closed")
        self.num_calls += 1
        self._check(plan)
        if self.latency_s:
            time.sleep(self.latency_s)
        if self.num_calls in self.fail_calls:
            raise InjectedFailureError(f"injected failure of call {self.num_calls}")
        self.num_tokens += plan.num_tokens
        for chunk in plan.chunks:
            self._write(chunk)
        rows = [self._row(chunk, before) for chunk in plan.chunks for before in range(chunk.rows - 1, -1, -1)]
        self._states = [self._row(chunk, before) for chunk in plan.chunks for before in range(chunk.states - 1, -1, -1)]
        return np.stack(rows) if rows else np.empty((0, self.vocab_size), np.float32)

    def states(self) -> NDArray[np.float32]:
        return np.stack(self._states)

    def _row(self, chunk: Chunk, before: int) -> NDArray[np.float32]:
        """After the token that has `before` others after it in the chunk."""
        states = self._read(chunk)
        return _logits(states[: len(states) - before], self.vocab_size)

    def check_integrity(self, cached: Iterable[int]) -> None:
        assert set(cached) <= set(range(self.num_blocks))

    def close(self) -> None:
        self.closed = True

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The oracle: `count` greedy tokens after `prompt`, computed without blocks, chunks or neighbours."""
        tokens, states, state = list(prompt), [], 0
        while True:
            for position in range(len(states), len(tokens)):
                state = _mix(state, tokens[position], position)
                states.append(state)
            if len(tokens) == len(prompt) + count:
                return tokens[len(prompt) :]
            tokens.append(int(_logits(np.array(states, np.uint64), self.vocab_size).argmax()))

    def _slots(self, chunk: Chunk) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        positions = np.arange(chunk.start + len(chunk.tokens))
        return np.asarray(chunk.block_table)[positions // self.block_size], positions % self.block_size

    def _read(self, chunk: Chunk) -> NDArray[np.uint64]:
        return self._store[self._slots(chunk)]

    def _write(self, chunk: Chunk) -> None:
        blocks, offsets = self._slots(chunk)
        state = int(self._store[blocks[chunk.start - 1], offsets[chunk.start - 1]]) if chunk.start else 0
        for position, token in enumerate(chunk.tokens, chunk.start):
            state = _mix(state, token, position)
            self._store[blocks[position], offsets[position]] = state

    def _check(self, plan: StepPlan) -> None:
        """The plan keeps its contract, and no chunk writes a block that another chunk uses."""
        assert 0 < plan.num_tokens <= self.max_step_tokens
        assert len({block for chunk in plan.chunks for block in chunk.block_table}) <= self.num_resident
        assert len({chunk.request_id for chunk in plan.chunks}) == len(plan.chunks)
        for chunk in plan.chunks:
            end = chunk.start + len(chunk.tokens)
            assert 0 <= chunk.start < end <= self.max_context
            assert len(chunk.block_table) == -(-end // self.block_size)
            assert len(set(chunk.block_table)) == len(chunk.block_table)
            written = set(chunk.block_table[chunk.start // self.block_size :])
            others = {block for other in plan.chunks if other is not chunk for block in other.block_table}
            assert not written & others, f"{chunk.request_id} writes blocks {written & others} that others use"
