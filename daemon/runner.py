"""The runner on the CPU: a model's recorded program, run over one StepPlan after another."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from ..cpu_kernels.kv_layout import KvCache
from ..cpu_kernels.layout import KV_BLOCK
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.team import Team
from ..experts.cpu_ops import CpuOps, check_spec
from ..experts.executor import CpuExecutor, Executor
from ..experts.final_norm import FinalNorm
from ..experts.kv_store import KvStore, kv_block_bytes
from ..experts.memory import aligned
from ..experts.model import Model
from ..experts.pack import PackedWeights, pack
from ..experts.progress import Progress
from ..experts.self_test import checked_kernels
from ..experts.spec import ModelSpec
from ..experts.step_inputs import StepInputs, StepLimits
from .choices import Choices
from .config import Config
from .events import EventLog
from .pack_cache import PackCache
from .step import StepPlan
from .step_layout import StepLayout
from .step_rows import RowLimits

if TYPE_CHECKING:  # it imports torch, which a daemon without accelerators does not
    from ..experts.acceleration import Acceleration

__all__ = ["DecoderRunner", "kv_block_bytes", "load_runner", "load_weights"]

_DEFAULT = Config()


class DecoderRunner:
    """A model on the CPU team, and on accelerators if there are any (see `step.Runner`). Not thread-safe: one thread
    executes. num_resident: of the blocks, how many a step may use."""

    block_size = KV_BLOCK

    def __init__(
        self,
        spec: ModelSpec,
        weights: PackedWeights,
        cache: KvStore,
        limits: StepLimits,
        num_blocks: int,
        seating: Seating,
        acceleration: "Acceleration | None" = None,
    ) -> None:
        self.vocab_size, self.num_blocks = spec.vocab_size, num_blocks
        self.max_step_tokens = limits.tokens
        self.max_context = min(spec.max_context, limits.positions)
        self.weight_bytes = weights.nbytes
        self.kv_bytes_per_token = kv_block_bytes(spec, cache.kind) // KV_BLOCK
        self.num_resident = acceleration.kv_resident(num_blocks) if acceleration else num_blocks
        self.tile_kernels = weights.kernels
        self.active_weight_bytes_per_token = _active_bytes(spec, weights)
        self._spec, self._weights, self._cache = spec, weights, cache  # the program holds their addresses
        self._inputs = StepInputs(limits)
        memory = acceleration.memory if acceleration else aligned
        self._ops = CpuOps(spec, weights, self._inputs, cache, seating.threads, memory)
        self._choices: dict[int, Choices] = {}  # by the number of tokens
        self.seating, self.team = seating, Team(seating)
        try:
            self.executor = self._executor(acceleration)
        except BaseException:
            self.team.close()
            raise
        all_heads = self.executor.head_reads_all
        self.row_limits = RowLimits(limits.sequences if all_heads else limits.rows, states_are_rows=all_heads)
        self._layout = StepLayout(
            self._inputs,
            num_blocks=num_blocks,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            rows=self.row_limits,
        )
        size = spec.hidden_size
        self._x = self._ops.buffers.x.view(np.float32)[:, :size]
        self._final_norm = FinalNorm(weights.vectors["final_norm"][:size], spec.rms_eps)

    def _executor(self, acceleration: "Acceleration | None") -> Executor:
        parts = (self._ops, self._inputs, self.team)
        if acceleration is None:
            return CpuExecutor(self._spec, *parts)
        return acceleration.executor(self._spec, self._weights, *parts)

    def execute(self, plan: StepPlan) -> NDArray[np.float32]:
        """Run one step; logits [sum of the chunks' rows, vocab_size], valid until the next call.

        Raises ValueError for a plan outside the runner's limits, before anything is written.
        """
        rows = self._layout.lay(plan)
        self.executor.run()
        return self._ops.buffers.logits[:rows, : self.vocab_size]

    def states(self) -> NDArray[np.float32]:
        """Of the last step [sum of the chunks' states, hidden size]."""
        self.executor.fetch_x()
        first = int(self._inputs.counts[N_LOGITS]) - self._layout.states
        rows = self._inputs.logit_rows[first : first + self._layout.states]
        return self._final_norm(self._x[rows])

    def choices(self) -> Choices | None:
        """The experts that the last step's tokens went to; None for a model without any."""
        if self._spec.routing is None:
            return None
        tokens = int(self._inputs.counts[N_TOKENS])
        if tokens not in self._choices:  # kept, since each look at an array costs
            routes = self._ops.buffers.branches["experts"].routes
            shape, pairs = (len(routes.ids), tokens, routes.top_k), tokens * routes.top_k
            ids, weights = routes.ids[:, :pairs].reshape(shape), routes.weights[:, :pairs].reshape(shape)
            self._choices[tokens] = Choices(ids, weights, self._spec.moe_layers[-1])
        return self._choices[tokens]

    def on_threads(self, threads: int) -> "DecoderRunner":
        """Another runner of the same weights and cache. Only one of them may run at a time; each must be closed."""
        seating = replace(self.seating, threads=threads)
        return DecoderRunner(self._spec, self._weights, self._cache, self._inputs.limits, self.num_blocks, seating)

    def anew(self) -> "DecoderRunner":
        """Another runner of the same weights with threads and a cache of its own, in place of one that hangs and may
        still write into its cache. Not for what runs on accelerators."""
        cache = KvStore(self._spec, self.num_blocks, self._cache.kind)
        return DecoderRunner(
            self._spec, self._weights, cache, self._inputs.limits, self.num_blocks, replace(self.seating)
        )

    def drop_blocks(self, blocks: Sequence[int]) -> int:
        """Give back the memory of blocks that hold nothing; they can be used as before. Bytes."""
        return self._cache.drop(blocks)

    def fill_cache(self) -> None:
        """Have all pages of the KV cache lie in memory, as after use."""
        self._cache.fill()

    @property
    def num_ops(self) -> int:
        """How many different ops the program has."""
        return self.executor.num_ops

    @property
    def kv_bytes(self) -> int:
        """What the KV cache takes, in RAM and on accelerators."""
        return self._cache.nbytes + self.executor.kv_bytes

    def check_integrity(self, cached: Iterable[int]) -> None:
        """See `step.Runner`."""
        self.executor.check_kv(cached)

    def close(self) -> None:
        """Stop the workers. The runner cannot be used afterwards."""
        self.executor.close()
        self.team.close()


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


def load_runner(  # noqa: PLR0913 (what a runner is made of; most have a default)
    model: Model,
    *,
    threads: int | Seating,
    num_blocks: int,
    max_context: int,
    max_step_tokens: int = 512,
    max_running: int = 64,
    kv_cache: KvCache = _DEFAULT.kv_cache,
    weights: PackedWeights | None = None,
    acceleration: "Acceleration | None" = None,
    progress: Progress | None = None,
) -> DecoderRunner:
    """Record a model's program over its packed weights. Raises ModelError for what cannot be run or does not fit.

    weights: what `load_weights` gave for the same `threads`; without them they are packed now.
    """
    weights = weights or load_weights(model, threads=threads, progress=progress)
    limits = StepLimits(max_step_tokens, max_running, -(-max_context // KV_BLOCK))
    cache = KvStore(model.spec, num_blocks, kv_cache, acceleration.kv_in_ram(num_blocks) if acceleration else None)
    if progress:
        progress("compiling kernels", 0, 1)
    runner = DecoderRunner(model.spec, weights, cache, limits, num_blocks, Seating.of(threads), acceleration)
    if progress:
        progress("compiling kernels", 1, 1)
    return runner


def _active_bytes(spec: ModelSpec, weights: PackedWeights) -> float:
    """Bytes of weights that one token alone reads: all but the embedding, of the experts the chosen share."""
    dense = sum(matrix.nbytes for role, matrix in weights.matrices.items() if role != "embed")
    if spec.routing is None:
        return float(dense)
    share = spec.routing.top_k / spec.routing.num_experts
    return dense + share * sum(matrix.nbytes for bank in weights.banks.values() for matrix in bank)
