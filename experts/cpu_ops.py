"""The op set of the CPU: buffers, and each op of the decoder as a row of a recorded program."""

import math

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.attention_rows import MAX_HEAD_DIM
from ..cpu_kernels.descriptor import N_HEAD, N_LOGITS, N_TOKENS
from ..cpu_kernels.down import FEW_PAIRS
from ..cpu_kernels.down import MOST_TILES as DOWN_TILES
from ..cpu_kernels.layout import KINDS, RECORDS, ROWS, SPAN, Record, padded
from ..cpu_kernels.program import FrozenProgram, Program
from ..cpu_kernels.rope import NO_NORM, NORM_ALL_HEADS, NORM_EACH_HEAD
from ..cpu_kernels.rope import STEP as HEAD_STEP
from ..cpu_kernels.routing import SOFTMAX_ALL, SOFTMAX_CHOSEN
from .buffers import Buffers, Memory, Routes, Rows
from .errors import UnsupportedModelError
from .kv_store import KvStore
from .memory import aligned
from .pack import PackedMatrix, PackedWeights
from .spec import ModelSpec, RopeSpec
from .step_inputs import StepInputs

_CHUNKS_PER_WORKER = 8  # of a matrix: enough that a slow worker delays nobody by much
_MOST_TILES = 8  # a chunk stays in the second-level cache while blocks of tokens pass
_EXPERT_TILES = 4
_DOWN_CHUNKS = 2  # for each worker: fewer and longer, since each is read from every chosen expert
_EVERY_TOKEN = {"count_slot": N_TOKENS, "rows": 0}
_NORM_MODE = {"none": NO_NORM, "head": NORM_EACH_HEAD, "full": NORM_ALL_HEADS}


def check_spec(spec: ModelSpec) -> None:
    """Raise UnsupportedModelError for a model whose sizes the kernels do not take."""
    if spec.head_dim % HEAD_STEP:
        raise UnsupportedModelError(
            f"heads of {spec.head_dim} elements are not supported, only multiples of {HEAD_STEP}; use another model"
        )
    if spec.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"heads of {spec.head_dim} elements are not supported, only up to {MAX_HEAD_DIM}; use another model"
        )


class CpuOps:
    """Records the decoder's ops (see `decoder.OpSet`) for `threads` workers. memory: see `Buffers`."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: PackedWeights,
        inputs: StepInputs,
        cache: KvStore,
        threads: int,
        memory: Memory = aligned,
    ) -> None:
        self._spec, self._weights, self._inputs, self.cache, self._threads = spec, weights, inputs, cache, threads
        self._kernels = weights.kernels
        self._program = Program()
        self._keep: list[NDArray[np.generic]] = []  # tables whose addresses the program holds
        self.buffers = Buffers(spec, inputs.limits, threads, memory)
        self._cosines, self._sines = turns_of(spec.rope, inputs.limits.positions)
        self._count_slot, self._rows = N_TOKENS, 0  # how many tokens matter, and where their rows are listed

    @property
    def _clips_late(self) -> bool:
        """A norm over all heads comes before the clipping of q and k."""
        return self._spec.qk_norm == "full"

    def program(self) -> FrozenProgram:
        """What was recorded."""
        return self._program.freeze()

    # -- the ops, in the order of `decoder.record`
    def begin(self) -> None:
        """Of a step whose embedding is looked up elsewhere."""
        self._count_slot, self._rows = N_TOKENS, 0
        self._group_single()

    def embed(self) -> None:
        self._count_slot, self._rows = N_TOKENS, 0
        matrix = self._weights.matrices["embed"]
        self._program.add(
            "embed", tokens=self._inputs.tokens.ctypes.data, reader=self._kernels.reader(matrix.kind), w=matrix.address,
            tile_bytes=matrix.tile_bytes, spans=matrix.spans, **_rows("out", self.buffers.x),
            count_slot=N_TOKENS, share=matrix.share, gap=matrix.gap,
        )  # fmt: skip
        self._group_single()

    def narrow(self) -> None:
        self.count_logits()
        self._group_single()

    def count_logits(self) -> None:
        """From here on only the tokens whose logits are wanted matter."""
        self._count_slot, self._rows = N_LOGITS, self._inputs.logit_rows.ctypes.data

    def norm(self, role: str, readers: tuple[str, ...]) -> None:
        read = {KINDS[self._matrix(reader).kind].record for reader in readers}
        fields: dict[Record, str] = {"plain": "plain", "bf16": "bfloat", "q8": "record"}
        forms: dict[str, int] = {}
        for form, name in fields.items():
            rows = self.buffers.normed.forms[form]
            forms |= _rows(name, rows) if form in read else {name: 0, name + "_stride": 0}
        self._program.add(
            "rms_norm", **_rows("x", self.buffers.x), weight=self._vector(role),
            n=self._spec.hidden_size, eps=float(self._spec.rms_eps),
            **self._taken, **forms,
        )  # fmt: skip
        self._program.meet()

    def project(self, layer: int) -> None:
        for name, out in (("q", self.buffers.q), ("k", self.buffers.k), ("v", self.buffers.v)):
            role = f"layers.{layer}.{name}"
            clip = math.inf if name != "v" and self._clips_late else self._spec.clip_qkv or math.inf
            taken = self._taken if name == "q" else _EVERY_TOKEN
            self._linear(
                role, self.buffers.normed, out, bias=role + "_bias", clip=clip, taken=taken, together=name != "v"
            )

    def rotate_and_store(self, layer: int) -> None:
        spec, here = self._spec, f"layers.{layer}."
        norms = [self._vector(here + n) if spec.qk_norm != "none" else 0 for n in ("q_norm", "k_norm")]
        self._program.add(
            "rope_store", **_rows("q", self.buffers.q), **_rows("k", self.buffers.k), **_rows("v", self.buffers.v),
            q_norm=norms[0], k_norm=norms[1], norm_mode=_NORM_MODE[spec.qk_norm], eps=float(spec.rms_eps),
            heads=spec.num_heads, kv_heads=spec.num_kv_heads, head_dim=spec.head_dim,
            rotary_dim=spec.rope.rotary_dim, cosines=self._cosines.ctypes.data, sines=self._sines.ctypes.data,
            q_scale=spec.head_dim**-0.5, positions=self._inputs.positions.ctypes.data,
            slots=self._inputs.slots.ctypes.data, **self.cache.fields(layer),
            clip=float(spec.clip_qkv or 0) if self._clips_late else 0.0, **self._taken,
        )  # fmt: skip
        self._program.meet()

    def attend(self, layer: int) -> None:
        spec, inputs, mixed = self._spec, self._inputs, self.buffers.mixed
        read = KINDS[self._matrix(f"layers.{layer}.o").kind].record
        written: Record = "plain" if spec.head_dim % SPAN else read  # a span of a record is of one head then
        self._program.add(
            "attention", **_rows("q", self.buffers.q), **_rows("out", mixed.forms[written]), heads=spec.num_heads,
            kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, window=spec.sliding_window or 0,
            **_rows("scratch", self.buffers.attention_scratch),
            block_first=inputs.block_first.ctypes.data, block_count=inputs.block_count.ctypes.data,
            block_table=inputs.block_table.ctypes.data, positions=inputs.positions.ctypes.data,
            piece_block=inputs.piece_block.ctypes.data, piece_segment=inputs.piece_segment.ctypes.data,
            block_partial=inputs.block_partial.ctypes.data, partials=self.buffers.partials.ctypes.data,
            finished=self.buffers.finished.ctypes.data, **self.cache.fields(layer),
            out_record=RECORDS.index(written), wanted=inputs.block_wanted.ctypes.data if self._rows else 0,
        )  # fmt: skip
        self._program.meet()
        if read != written:
            self._to_record(mixed, read, N_TOKENS)

    def output(self, layer: int) -> None:
        role = f"layers.{layer}.o"
        self._linear(role, self.buffers.mixed, self.buffers.x, bias=role + "_bias", add=True, taken=self._taken)

    def route(self, layer: int) -> None:
        self.choose(layer)
        self.group(layer)

    def choose(self, layer: int) -> None:
        """Choose experts: ids and weights per token, not yet the tokens of each expert."""
        spec, here, routes = self._spec.routing, f"layers.{layer}.", self.buffers.branches["experts"].routes
        assert spec is not None
        if self._spec.shared_gate:
            self._linear(here + "shared_gate", self.buffers.normed, self.buffers.gate_logits, together=True)
        self._linear(here + "router", self.buffers.normed, self.buffers.router_logits)
        self._program.add(
            "route", **_rows("logits", self.buffers.router_logits),
            num_experts=spec.num_experts, top_k=spec.top_k, count_slot=self._count_slot,
            score=SOFTMAX_ALL if spec.score == "softmax" else SOFTMAX_CHOSEN, renormalise=int(spec.renormalise),
            scale=float(spec.scale), ids=routes.ids[self.choice(layer)].ctypes.data,
            weights=routes.weights[self.choice(layer)].ctypes.data,
        )  # fmt: skip
        self._program.meet()

    def group(self, layer: int, ids: NDArray[np.int64] | None = None) -> None:
        """Find the tokens of each expert from the choices that the routes of an MoE layer hold already, or from `ids`,
        where num_experts hides a pair."""
        routes = self.buffers.branches["experts"].routes
        self._group(routes, routes.ids[self.choice(layer)] if ids is None else ids)

    def feed_forward(self, layer: int, branch: str, *, together: bool) -> None:
        here, buffers = prefix_of(layer, branch), self.buffers.branches[branch]
        gate, up, down = (self._matrix(here + part) for part in ("gate", "up", "down"))
        x, x_stride = self.buffers.normed.read_by(gate.kind)
        second_x, second_x_stride = self.buffers.normed.read_by(up.kind)
        out, out_stride = buffers.inner.read_by(down.kind)
        for shard in gate.shards:
            table, second = (self._table(here + part, shard.node) for part in ("gate", "up"))
            self._program.add(
                "expert_gate_up", node=shard.node, x=x, x_stride=x_stride, product=self._kernels.product(gate.kind),
                table=table, tile_bytes=gate.tile_bytes, start=shard.first, tiles=shard.first + shard.tiles,
                spans=gate.spans, chunk=_EXPERT_TILES, out=out, out_stride=out_stride,
                second_x=second_x, second_x_stride=second_x_stride, second_product=self._kernels.product(up.kind),
                second_table=second, second_tile_bytes=up.tile_bytes,
                out_record=RECORDS.index(KINDS[down.kind].record), out_columns=padded(buffers.inner.columns),
                offsets=buffers.routes.offsets.ctypes.data, order=buffers.routes.order.ctypes.data,
                active=buffers.routes.active.ctypes.data, num_active=buffers.routes.num_active.ctypes.data,
                top_k=buffers.routes.top_k, scratch=self.buffers.scratch.ctypes.data,
            )  # fmt: skip
        if not together:
            self._program.meet()

    def project_down(self, layer: int, branch: str) -> None:
        self.down(layer, branch)
        self.combine(layer, branch)

    def down(self, layer: int, branch: str, few: int = FEW_PAIRS) -> None:
        """A branch's W_down inner; up to `few` pairs are also weighted and added to x, the others left to `combine`."""
        buffers, down = self.buffers.branches[branch], self._matrix(prefix_of(layer, branch) + "down")
        routes = buffers.routes
        x, x_stride = buffers.inner.read_by(down.kind)
        chunk = max(2, min(DOWN_TILES, down.tiles // (self._threads * _DOWN_CHUNKS)))
        for shard in down.shards:
            self._program.add(
                "expert_down", node=shard.node, x=x, x_stride=x_stride, product=self._kernels.product(down.kind),
                table=self._table(prefix_of(layer, branch) + "down", shard.node), tile_bytes=down.tile_bytes,
                start=shard.first, tiles=shard.first + shard.tiles, spans=down.spans,
                chunk=chunk, **_rows("out", buffers.outs),
                offsets=routes.offsets.ctypes.data, active=routes.active.ctypes.data,
                num_active=routes.num_active.ctypes.data, **_rows("scratch", self.buffers.down_scratch),
                **_rows("sum", self.buffers.x), **self._choices(layer, branch, few),
            )  # fmt: skip
        self._program.meet()

    def combine(self, layer: int, branch: str, few: int = FEW_PAIRS) -> None:
        """x += the weighted outputs of a branch, of more than `few` pairs."""
        outs = self.buffers.branches[branch].outs
        self._program.add(
            "combine", **_rows("x", self.buffers.x), **_rows("outs", outs), **self._choices(layer, branch, few)
        )
        self._program.meet()

    def head(self) -> None:
        taken = {"count_slot": N_HEAD, "rows": 0}
        self._linear("head", self.buffers.normed, self.buffers.logits, taken=taken)

    def to_records(self, layer: int) -> None:
        """What is normed, from its plain form to those that the experts of a layer read."""
        forms = {KINDS[self._matrix(f"layers.{layer}.experts.{part}").kind].record for part in ("gate", "up")}
        for form in sorted(forms - {"plain"}):
            self._to_record(self.buffers.normed, form, self._count_slot)

    def cut(self) -> FrozenProgram | None:
        """What was recorded since the last cut; None if that is nothing."""
        program, self._program = self._program, Program()
        return program.freeze() if program else None

    def choice(self, layer: int) -> int:
        """The row of an MoE layer's choices."""
        return sum(self._spec.moe_layers[:layer])

    # -- helpers
    def _to_record(self, rows: Rows, form: Record, count_slot: int) -> None:
        """The plain form of the first rows, as records."""
        self._program.add(
            "quantise" if form == "q8" else "round_rows", **_rows("x", rows.plain), n=rows.columns,
            count_slot=count_slot, **_rows("record", rows.forms[form]),
        )  # fmt: skip
        self._program.meet()

    def _choices(self, layer: int, branch: str, few: int) -> dict[str, int]:
        """The fields that say how a branch's outputs are added up."""
        routes = self.buffers.branches[branch].routes
        gated = branch == "shared" and self._spec.shared_gate
        return {
            "top_k": routes.top_k, "position": routes.position.ctypes.data, "n": self._spec.hidden_size,
            "weights": routes.weights[self.choice(layer)].ctypes.data if branch == "experts" else 0,
            "gate": self.buffers.gate_logits.ctypes.data if gated else 0,
            "gate_stride": self.buffers.gate_logits.shape[1], "few": few, **self._taken,
        }  # fmt: skip

    @property
    def _taken(self) -> dict[str, int]:
        """The fields that say which rows of tokens an op takes, in buffers that have one for every token."""
        return {"count_slot": self._count_slot, "rows": self._rows}

    def _group_single(self) -> None:
        """Where one expert takes all tokens, of the shared or a dense branch, group them, beside the op before."""
        single = next((b.routes for b in self.buffers.branches.values() if b.routes.num_experts == 1), None)
        self._group(single) if single else self._program.meet()

    def _linear(
        self,
        role: str,
        x: Rows,
        out: NDArray[np.generic],
        *,
        bias: str = "",
        add: bool = False,
        clip: float = math.inf,
        taken: dict[str, int] | None = None,
        together: bool = False,
    ) -> None:
        """taken: which rows of x and out; if it is not given, the first ones, of the tokens that matter."""
        matrix = self._weights.matrices[role]
        address, stride = x.read_by(matrix.kind)
        biases = self._vector(bias) if bias in self._weights.vectors else self.buffers.no_bias.ctypes.data
        for shard in matrix.shards:
            before = 4 * ROWS * shard.first  # bytes of the results of the tiles before
            self._program.add(
                "linear", node=shard.node, x=address, x_stride=stride, product=self._kernels.product(matrix.kind),
                tile_bytes=matrix.tile_bytes,
                w=shard.address, tiles=shard.tiles, spans=matrix.spans, chunk=self._chunk(matrix),
                out=out.ctypes.data + before, out_stride=out.strides[0], bias=biases + before,
                add=int(add), low=-clip, high=clip, scratch=self.buffers.scratch.ctypes.data,
                **(taken or {"count_slot": self._count_slot, "rows": 0}),
            )  # fmt: skip
        if not together:
            self._program.meet()

    def _group(self, routes: Routes, ids: NDArray[np.int64] | None = None) -> None:
        """ids: of all pairs; None where one expert takes them all."""
        self._program.add(
            "group", ids=0 if ids is None else ids.ctypes.data, num_experts=routes.num_experts,
            top_k=routes.top_k, count_slot=self._count_slot, offsets=routes.offsets.ctypes.data,
            order=routes.order.ctypes.data, position=routes.position.ctypes.data, active=routes.active.ctypes.data,
            num_active=routes.num_active.ctypes.data,
        )  # fmt: skip
        self._program.meet()

    def _chunk(self, matrix: PackedMatrix) -> int:
        return max(1, min(_MOST_TILES, matrix.tiles // (self._threads * _CHUNKS_PER_WORKER)))

    def _vector(self, role: str) -> int:
        return self._weights.vectors[role].ctypes.data

    def _matrix(self, role: str) -> PackedMatrix:
        return self._weights.banks[role][0] if role in self._weights.banks else self._weights.matrices[role]

    def _table(self, role: str, node: int) -> int:
        """The address of the addresses of a bank's matrices: of their shares at a node, as if tile 0 lay there too."""
        bank = self._weights.banks.get(role) or [self._weights.matrices[role]]
        shares = [matrix.shards[node] for matrix in bank]
        table = np.array([share.address - share.first * bank[0].tile_bytes for share in shares], np.int64)
        self._keep.append(table)
        return table.ctypes.data


def _rows(name: str, rows: NDArray[np.uint8]) -> dict[str, int]:
    """The two fields of a buffer of rows: address and stride."""
    return {name: rows.ctypes.data, name + "_stride": rows.shape[1]}


def prefix_of(layer: int, branch: str) -> str:
    return f"layers.{layer}." + (branch + "." if branch else "")


def turns_of(rope: RopeSpec, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosine and sine of every position and frequency, float32 [positions, rotary_dim / 2]."""
    angles = np.outer(np.arange(positions), np.array(rope.inverse_frequencies, np.float64))
    return (np.cos(angles) * rope.magnitude).astype(np.float32), (np.sin(angles) * rope.magnitude).astype(np.float32)
