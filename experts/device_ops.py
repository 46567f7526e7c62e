"""The op set of an accelerator: each op queues its kernels on the step that was sent there.

Every token of the step has a row in the buffers. Once the last layer's attention is over, those whose logits are wanted
move to the first rows, and only they are computed. Launches may be made for more rows than there are tokens, see
`Graphs`: what they are given has as many rows then, of which kernels leave those beyond the tokens alone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..cpu_kernels.kv_layout import part_bytes
from ..cpu_kernels.layout import KINDS, KV_BLOCK
from ..cpu_kernels.layout import Record as Form
from ..gpu_kernels.device import Accelerator, Cost, Costs
from ..gpu_kernels.kernels import Heads, Kernels, Routing
from ..gpu_kernels.tensors import Groups, Matrix, Record
from . import device_costs as costs
from .cpu_ops import prefix_of, turns_of
from .device_buffers import DeviceBuffers
from .device_choices import DeviceChoices
from .device_forms import DeviceForms
from .device_inputs import DeviceInputs
from .device_kv import DeviceKv, KvRoom
from .device_memory import DeviceMemory
from .device_rows import Forms, one_plain
from .device_weights import DeviceWeights, roles_of
from .graphs import Graphs, Key
from .pack import PackedWeights
from .spec import ModelSpec
from .step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class _Progress:
    """Of a step: whether only tokens whose logits are wanted are left, and the forms of what was normed last."""

    narrowed: bool = False
    written: Forms = frozenset()


class DeviceOps:
    """See `decoder.OpSet`. layers: whose dense parts lie there; ends: of "embed" and "head" those that do.

    Takes all memory at once, raising DeviceFullError; `load` brings the weights. `begin` starts a step, whose ops are
    called by `queue`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        kernels: Kernels,
        graphs: Graphs,
        spec: ModelSpec,
        packed: PackedWeights,
        inputs: StepInputs,
        room: KvRoom,
        layers: tuple[int, ...],
        ends: tuple[str, ...],
    ) -> None:
        self.accelerator, self._kernels, self._spec, self._packed = accelerator, kernels, spec, packed
        self._inputs, self.graphs = inputs, graphs
        tops = [*ends, *(("final_norm",) if "head" in ends else ())]
        self.weights = DeviceWeights(accelerator, packed, [*roles_of(packed, layers), *tops])
        self._memory = DeviceMemory(accelerator, "buffers and KV cache of dense layers")
        try:
            self.inputs = DeviceInputs(accelerator, self._memory, inputs)
            self.buffers = DeviceBuffers(
                self._memory, spec, inputs.limits, DeviceForms.of(spec, packed, layers, head="head" in ends)
            )
            self.choices = self._choices_of(layers, inputs.limits.tokens)
            turns = turns_of(spec.rope, inputs.limits.positions)
            self._turns = [self._memory.empty(table.shape, torch.float32) for table in turns]
            self.kv = DeviceKv(accelerator, self._memory, spec, room, layers)
        except BaseException:
            self.close()
            raise
        self._told_turns = [torch.from_numpy(table) for table in turns]
        self._heads = Heads(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            spec.qk_norm,
            spec.rms_eps,
            clip=(spec.clip_qkv or 0.0) if self._clips_late else 0.0,
            window=spec.sliding_window or 0,
        )
        self._position_bytes = spec.num_kv_heads * part_bytes(room.store.kind, spec.head_dim) / KV_BLOCK
        self._progress = _Progress()

    def _choices_of(self, layers: tuple[int, ...], tokens: int) -> DeviceChoices:
        routed = [layer for layer in layers if self._spec.moe_layers[layer]]
        numbers = [sum(self._spec.moe_layers[:layer]) for layer in routed]
        top_k = self._spec.routing.top_k if self._spec.routing else 0
        return DeviceChoices(self.accelerator, self._memory, tokens, top_k, routed, numbers)

    def load(self) -> None:
        """Bring the weights there. Raises DeviceError."""
        accelerator = self.accelerator
        for target, source in zip(self._turns, self._told_turns, strict=True):
            accelerator.copy(target, source, "to")
        self.weights.load()
        for table in (self.buffers.everyone, self.buffers.only):
            accelerator.launch(table.zero_, Cost())

    def close(self) -> None:
        self.weights.close()
        self._memory.release()

    # -- a step
    def begin(self) -> None:
        """Send the step that is laid out in the inputs, and bring what it reads of the KV cache."""
        self.kv.begin(self._inputs)
        self.inputs.send(self.kv, self.graphs.rows)
        self._progress = _Progress()
        self.choices.begin(self._sized)

    def queue(self, key: Key, ops: Sequence[Callable[[], object]]) -> None:
        """Queue ops of the step, the same each time for a key."""
        before = self._progress

        def work() -> _Progress:
            self._progress = before
            for op in ops:
                op()
            return self._progress

        self._progress = self.graphs.run((*key, self.graphs.rows, self.inputs.columns), work)

    @property
    def narrowed(self) -> bool:
        """Whether only tokens whose logits are wanted are left."""
        return self._progress.narrowed

    @narrowed.setter
    def narrowed(self, narrowed: bool) -> None:
        self._progress = replace(self._progress, narrowed=narrowed)

    @property
    def rows(self) -> int:
        """How many tokens are computed from here on."""
        return self._tokens(self.narrowed)

    def group(self) -> None:
        """Of the branches with one expert, which takes every token."""
        for name, branch in self.buffers.branches.items():
            if name != "experts":
                everyone = self.buffers.everyone[: self._sized]
                groups = branch.groups(self._sized, 1)
                align = partial(self._kernels.align, everyone, self.buffers.only, groups, self._count)
                self._queue(align, Cost(8.0 * self._sized))

    def compact(self) -> None:
        """Move the tokens whose logits are wanted to the first rows of x."""
        x = self.buffers.x[: self._sized]
        self.narrowed = True
        spare, cost = self.buffers.spare[: self._sized], self._values(self._spec.hidden_size)
        self._queue(partial(torch.index_select, x, 0, self.inputs.logit_rows, out=spare), cost)
        self._queue(partial(x[: self._sized].copy_, spare), cost)
        self.group()

    # -- the ops, in the order of `decoder.record`
    def embed(self) -> None:
        matrix, cost = self.weights.matrix("embed"), self._values(self._spec.hidden_size)
        self._queue(partial(self._kernels.embed, self.inputs.ids, matrix, self._x, self._count), cost)

    def norm(self, role: str, readers: tuple[str, ...], *others: Form) -> None:
        """others: forms that are wanted beside those of the readers."""
        written = one_plain((*map(self._record_of, readers), *others))
        self._progress = replace(self._progress, written=written)
        weight = self.weights.vector(role, self._spec.hidden_size)
        out = self.buffers.normed.record(written, self._sized)
        norm = partial(self._kernels.rms_norm, self._x, weight, self._spec.rms_eps, out, self._count)
        self._queue(norm, self._values(self._spec.hidden_size))

    def project(self, layer: int) -> None:
        clip = self._spec.clip_qkv or math.inf
        for name, out in (("q", self.buffers.q), ("k", self.buffers.k), ("v", self.buffers.v)):
            role = f"layers.{layer}.{name}"
            limit = math.inf if name != "v" and self._clips_late else clip
            self._linear(self._normed(role), role, out[: self._sized], limit=limit)

    def rotate_and_store(self, layer: int) -> None:
        spec, here, buffers, places = self._spec, f"layers.{layer}.", self.buffers, self.inputs.places
        sizes = (spec.q_size, spec.kv_size) if spec.qk_norm == "full" else (spec.head_dim,) * 2
        q_norm, k_norm = (
            self.weights.vector(here + name, size) if spec.qk_norm != "none" else None
            for name, size in zip(("q_norm", "k_norm"), sizes, strict=True)
        )
        norms = None if q_norm is None or k_norm is None else (q_norm, k_norm)
        q, k, v = (rows[: self._sized] for rows in (buffers.q, buffers.k, buffers.v))
        turns = (self._turns[0], self._turns[1])
        rotate = partial(self._kernels.rotate, q, k, norms, turns, self._heads, places, self._count)
        self._queue(rotate, self._values(spec.q_size + spec.kv_size))
        store = partial(self._kernels.store, k, v, self.kv.caches[layer], places, self._count)
        self._queue(store, self._values(2 * spec.kv_size))

    def attend(self, layer: int) -> None:
        spec, out = self._spec, self.buffers.attended[: self._sized]
        attend = partial(
            self._kernels.attend,
            self.buffers.q[: self._sized],
            self.kv.caches[layer],
            self._heads,
            self.inputs.places,
            out,
            self._count,
        )
        self._queue(attend, self._attention_cost)
        to_record = partial(self._kernels.to_record, out, self._mixed(layer), self._count)
        self._queue(to_record, self._values(spec.q_size))

    def output(self, layer: int) -> None:
        self._linear(self._mixed(layer), f"layers.{layer}.o", self._x, add=True)

    def route(self, layer: int) -> None:
        spec, here, buffers = self._spec.routing, f"layers.{layer}.", self.buffers
        assert spec is not None
        if self._spec.shared_gate:
            self._linear(self._normed(here + "shared_gate"), here + "shared_gate", buffers.gate_logits[: self._sized])
        logits = buffers.router_logits[: self._sized]
        self._linear(self._normed(here + "router"), here + "router", logits)
        routing = Routing(spec.top_k, spec.score != "softmax", spec.renormalise, spec.scale)
        ids, weights = (part(layer, self._sized) for part in (self.choices.ids, self.choices.weights))
        route = partial(self._kernels.route, logits, routing, ids, weights, self._count)
        self._queue(route, self._values(spec.num_experts))

    def feed_forward(self, layer: int, branch: str, *, together: bool) -> None:
        """Of a shared or a dense branch; `together` makes no difference."""
        gate, up = (self.weights.bank(prefix_of(layer, branch) + part) for part in ("gate", "up"))
        self._gate_up(layer, branch, (gate, up), self._products(gate, up))

    def project_down(self, layer: int, branch: str) -> None:
        """Of a shared or a dense branch."""
        down = self.weights.bank(prefix_of(layer, branch) + "down")
        self._down(layer, branch, down, self._products(down))
        gated = branch == "shared" and self._spec.shared_gate
        self._combine(None, self.buffers.gate_logits[: self._sized, 0] if gated else None, 1)

    def head(self) -> None:
        logits = self.buffers.logits[: self._sized, : self._spec.vocab_size]
        self._linear(self._normed("head"), "head", logits)

    # -- the experts of a layer that lie here; those elsewhere are added by whoever has sent them
    def experts(self, layer: int, matrices: tuple[Matrix, Matrix, Matrix], table: torch.Tensor) -> None:
        """outs: of the pairs whose expert has a slot of the matrices, gate, up and down, by a table of all experts."""
        gate, up, down = matrices
        ids = self.choices.ids(layer, self._sized)
        groups = self.buffers.branches["experts"].groups(self._sized, len(gate.tiles))
        align = partial(self._kernels.align, ids, table, groups, self._count)
        self._queue(align, Cost(8.0 * ids.numel()))
        self._gate_up(layer, "experts", (gate, up), self._chosen((gate, up), ids, table))
        self._down(layer, "experts", down, self._chosen((down,), ids, table))

    def add_experts(self, layer: int) -> None:
        """x += the weighted outs of all pairs."""
        weights = self.choices.weights(layer, self._sized)
        self._combine(weights, None, weights.shape[1])

    # -- helpers
    @property
    def _count(self) -> torch.Tensor:
        return self.inputs.count(narrowed=self.narrowed)

    def _tokens(self, narrowed: bool) -> int:
        return self.inputs.logits if narrowed else self.inputs.tokens

    @property
    def _sized(self) -> int:
        """Rows that launches are made for."""
        return self.graphs.rows or self.rows

    @property
    def _x(self) -> torch.Tensor:
        """float32 [rows, hidden size]."""
        return self.buffers.x[: self._sized, : self._spec.hidden_size]

    @property
    def _clips_late(self) -> bool:
        """A norm over all heads comes before the clipping of q and k."""
        return self._spec.qk_norm == "full"

    def _queue(self, work: Callable[[], object], cost: Costs) -> None:
        if self.rows:
            self.accelerator.launch(work, cost)

    def _attention_cost(self) -> Cost:
        spec = self._spec
        seen = self.inputs.seen(spec.sliding_window)
        return costs.attention(*seen, spec.num_heads, spec.head_dim, self._position_bytes)

    def _record_of(self, role: str) -> Form:
        """That a matrix or a bank reads."""
        bank = self._packed.banks.get(role)
        return KINDS[(bank[0] if bank else self._packed.matrices[role]).kind].record

    def _normed(self, *readers: str) -> Record:
        forms = {self._record_of(reader) for reader in readers}
        return self.buffers.normed.record(
            frozenset(form if form in self._progress.written else "plain" for form in forms), self._sized
        )

    def _mixed(self, layer: int) -> Record:
        return self.buffers.mixed.record(frozenset({self._record_of(f"layers.{layer}.o")}), self._sized)

    def _gate_up(self, layer: int, branch: str, matrices: tuple[Matrix, Matrix], cost: Costs) -> None:
        prefix, (gate, up) = prefix_of(layer, branch), matrices
        x = self._normed(prefix + "gate", prefix + "up")
        groups, inner = self._places(branch, prefix, gate)
        work = partial(self._kernels.gate_up, x, gate, up, groups, inner, self._count)
        self._queue(work, cost)

    def _down(self, layer: int, branch: str, down: Matrix, cost: Costs) -> None:
        groups, inner = self._places(branch, prefix_of(layer, branch), down)
        outs = self.buffers.outs[: self._sized * groups.top_k, : self._spec.hidden_size]
        work = partial(self._kernels.down, inner, down, groups, outs, self._count)
        self._queue(work, cost)

    def _places(self, branch: str, prefix: str, bank: Matrix) -> tuple[Groups, Record]:
        """Of a branch's pairs: by slots of the bank, and their inner activations."""
        here = self.buffers.branches[branch]
        forms = frozenset({self._record_of(prefix + "down")})
        return here.groups(self._sized, len(bank.tiles)), here.inner.record(forms, self._sized * here.top_k)

    def _combine(self, weights: torch.Tensor | None, gate: torch.Tensor | None, top_k: int) -> None:
        outs = self.buffers.outs[: self._sized * top_k, : self._spec.hidden_size]
        work = partial(self._kernels.combine, self._x, outs, weights, gate, self._count)
        self._queue(work, self._values(self._spec.hidden_size, top_k))

    def _linear(self, x: Record, role: str, out: torch.Tensor, *, limit: float = math.inf, add: bool = False) -> None:
        matrix = self.weights.matrix(role)
        bias = self.weights.vector(role + "_bias", matrix.rows) if self.weights.has(role + "_bias") else None
        linear = partial(self._kernels.linear, x, matrix, out, self._count, bias=bias, limit=limit, add=add)
        self._queue(linear, self._products(matrix))

    # -- what launches cost, which is asked for again when they are replayed
    def _values(self, columns: int, each: int = 1) -> Costs:
        """Of an op on values of all tokens, `each` rows of them."""
        narrowed = self.narrowed
        return lambda: costs.values(self._tokens(narrowed) * each, columns)

    def _products(self, *matrices: Matrix) -> Costs:
        narrowed = self.narrowed
        return lambda: costs.products(matrices, self._tokens(narrowed))

    def _chosen(self, matrices: Sequence[Matrix], ids: torch.Tensor, table: torch.Tensor) -> Costs:
        narrowed = self.narrowed
        return lambda: costs.chosen(matrices, ids[: self._tokens(narrowed)], table)
