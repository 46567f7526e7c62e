"""The runner on the CPU: lays a StepPlan out in the arrays that the recorded program reads, and runs the program."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import ENTRY, N_LOGITS, N_PIECES, N_TOKENS
from ..cpu_kernels.kv_layout import KvCache
from ..cpu_kernels.layout import KV_BLOCK
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.team import Team
from ..experts.cpu_ops import CpuOps, check_spec
from ..experts.decoder import record
from ..experts.kv_store import KvStore, kv_block_bytes
from ..experts.model import Model
from ..experts.pack import PackedWeights, pack
from ..experts.progress import Progress
from ..experts.self_test import checked_kernels
from ..experts.spec import ModelSpec
from ..experts.step_inputs import StepInputs, StepLimits
from .config import Config
from .events import EventLog
from .pack_cache import PackCache
from .query_blocks import lay_query_blocks
from .step import Chunk, StepPlan

__all__ = ["DecoderRunner", "kv_block_bytes", "load_runner", "load_weights"]

_DEFAULT = Config()


class DecoderRunner:
    """A model on the CPU team (see `step.Runner`). Not thread-safe: one thread executes."""

    block_size = KV_BLOCK

    def __init__(
        self,
        spec: ModelSpec,
        weights: PackedWeights,
        cache: KvStore,
        limits: StepLimits,
        num_blocks: int,
        seating: Seating,
    ) -> None:
        self.vocab_size, self.num_blocks = spec.vocab_size, num_blocks
        self.max_step_tokens = limits.tokens
        self.max_context = min(spec.max_context, limits.positions)
        self.weight_bytes, self.kv_bytes_per_token = weights.nbytes, cache.nbytes // (num_blocks * KV_BLOCK)
        self.tile_kernels = weights.kernels
        self.active_weight_bytes_per_token = _active_bytes(spec, weights)
        self._spec, self._weights, self._cache = spec, weights, cache  # the program holds their addresses
        self._inputs = StepInputs(limits)
        self._ops = CpuOps(spec, weights, self._inputs, cache, seating.threads)
        record(spec, self._ops)
        self._program = self._ops.program()
        self.seating, self.team = seating, Team(seating)

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        """Run one step; logits [chunks that sample, vocab_size], valid until the next call.

        Raises ValueError for a plan outside the runner's limits, before anything is written.
        """
        self._check(plan)
        rows = self._lay_out(plan)
        self.team.run(self._program, self._inputs.counts)
        return self._ops.buffers.logits[:rows, : self.vocab_size]

    def on_threads(self, threads: int) -> "DecoderRunner":
        """Another runner of the same weights and cache. Only one of them may run at a time; each must be closed."""
        seating = replace(self.seating, threads=threads)
        return DecoderRunner(self._spec, self._weights, self._cache, self._inputs.limits, self.num_blocks, seating)

    @property
    def num_ops(self) -> int:
        """How many different ops the program has."""
        return len(np.unique(self._program.rows[..., ENTRY]))

    def close(self) -> None:
        """Stop the workers. The runner cannot be used afterwards."""
        self.team.close()

    def _check(self, plan: StepPlan) -> None:
        """Kernels trust the step's arrays: what is out of range here would be read or written outside their memory."""
        limits = self._inputs.limits
        if plan.num_tokens > limits.tokens or len(plan.chunks) > limits.sequences:
            raise ValueError(
                f"a step of {plan.num_tokens} tokens in {len(plan.chunks)} chunks exceeds the runner's "
                f"{limits.tokens} tokens in {limits.sequences}"
            )
        for chunk in plan.chunks:
            end, length = chunk.start + len(chunk.tokens), len(chunk.block_table)
            if not 0 <= chunk.start < end <= self.max_context:
                raise ValueError(
                    f"{chunk.request_id}: {len(chunk.tokens)} tokens at position {chunk.start} do not lie within the "
                    f"runner's context of {self.max_context}"
                )
            if not -(-end // KV_BLOCK) <= length <= limits.blocks_per_sequence:
                raise ValueError(
                    f"{chunk.request_id}: a table of {length} blocks does not fit {end} positions; it needs "
                    f"{-(-end // KV_BLOCK)} to {limits.blocks_per_sequence} blocks of {KV_BLOCK}"
                )
            _check_ids(f"{chunk.request_id}: token ids", chunk.tokens, self.vocab_size)
            _check_ids(f"{chunk.request_id}: block ids", chunk.block_table, self.num_blocks)

    def _lay_out(self, plan: StepPlan) -> int:
        inputs, first, rows = self._inputs, 0, 0
        for sequence, chunk in enumerate(plan.chunks):
            count = len(chunk.tokens)
            self._lay_tokens(chunk, sequence, first)
            if chunk.sample:
                inputs.logit_rows[rows] = first + count - 1
                rows += 1
            first += count
        inputs.counts[[N_TOKENS, N_LOGITS, N_PIECES]] = first, rows, lay_query_blocks(inputs, plan.chunks)
        return rows

    def _lay_tokens(self, chunk: Chunk, sequence: int, first: int) -> None:
        inputs, count = self._inputs, len(chunk.tokens)
        table = np.asarray(chunk.block_table, np.int64)
        inputs.tables[sequence, : len(table)] = table
        positions = np.arange(chunk.start, chunk.start + count)
        here = slice(first, first + count)
        inputs.tokens[here], inputs.positions[here] = chunk.tokens, positions
        inputs.slots[here] = table[positions // KV_BLOCK] * KV_BLOCK + positions % KV_BLOCK


def load_weights(
    model: Model,
    *,
    threads: int | Seating,
    cache: PackCache | None = None,
    progress: Progress | None = None,
    events: EventLog | None = None,
) -> PackedWeights:
    """The packed weights of a model, from its cache if it has one, and tested kernels.

    threads: how many, or a seating that also says where they and their shares of the weights lie.
    Raises ModelError for what cannot be run.
    """
    check_spec(model.spec)
    weights = pack(model, threads, progress) if cache is None else cache.load_or_pack(threads, progress)
    if events:
        for name, count in weights.reencoded.items():
            events.record("weights_reencoded", f"{count} matrices of format {name} re-encoded to a packed kind")
    if progress:
        progress("testing kernels", 0, 1)
    weights.kernels = checked_kernels(weights, events.record if events else None)
    if progress:
        progress("testing kernels", 1, 1)
    return weights


def load_runner(
    model: Model,
    *,
    threads: int | Seating,
    num_blocks: int,
    max_context: int,
    max_step_tokens: int = 512,
    max_running: int = 64,
    kv_cache: KvCache = _DEFAULT.kv_cache,
    weights: PackedWeights | None = None,
    progress: Progress | None = None,
) -> DecoderRunner:
    """Record a model's program over its packed weights. Raises ModelError for what cannot be run.

    weights: what `load_weights` gave for the same `threads`; without them they are packed now.
    """
    weights = weights or load_weights(model, threads=threads, progress=progress)
    limits = StepLimits(max_step_tokens, max_running, -(-max_context // KV_BLOCK))
    cache = KvStore(model.spec, num_blocks, kv_cache)
    if progress:
        progress("compiling kernels", 0, 1)
    runner = DecoderRunner(model.spec, weights, cache, limits, num_blocks, Seating.of(threads))
    if progress:
        progress("compiling kernels", 1, 1)
    return runner


def _check_ids(what: str, ids: Sequence[int], count: int) -> None:
    if min(ids) < 0 or max(ids) >= count:
        raise ValueError(f"{what} must be 0 to {count - 1}, not {min(ids)} to {max(ids)}")


def _active_bytes(spec: ModelSpec, weights: PackedWeights) -> float:
    """Bytes of weights that one token alone reads: all but the embedding, of the experts the chosen share."""
    dense = sum(matrix.nbytes for role, matrix in weights.matrices.items() if role != "embed")
    if spec.routing is None:
        return float(dense)
    share = spec.routing.top_k / spec.routing.num_experts
    return dense + share * sum(matrix.nbytes for bank in weights.banks.values() for matrix in bank)
