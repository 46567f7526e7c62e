"""Packing a model: every matrix once from the mapped checkpoint into the runtime layout, in one arena of RAM."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.crew import Crew
from ..cpu_kernels.layout import KINDS, ROWS, SPAN, packed_bytes, packed_shape, padded, padded_rows
from ..cpu_kernels.seating import Seating
from ..cpu_kernels.tiles.choice import TileKernels
from .checkpoint import Tensor, check_unchanged, release
from .codes import pack_rows
from .errors import UnsupportedModelError
from .formats import FORMATS, format_of
from .memory import arena
from .model import Model
from .progress import Progress

VECTOR = "vector"
_SLAB = 1 << 20  # elements unpacked at a time: bounds the temporary memory
_REGION = 1 << 22  # a node's part of the arena is a multiple of that: whole huge pages, and whole chunks of a store


@dataclass(frozen=True, slots=True)
class Shard:
    """Tiles first .. first + tiles - 1 of a matrix, at `address` in the memory of a node."""

    node: int
    first: int
    tiles: int
    address: int


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [rows, columns] in tiles at `address`; the arena owns the memory.

    On a machine with several memory nodes its tiles are shared out: `address` is that of node 0's share, those of the
    others are each `gap` bytes further.
    """

    kind: str
    rows: int
    columns: int
    address: int
    nodes: int = 1
    gap: int = 0

    @property
    def tiles(self) -> int:
        return padded_rows(self.rows) // ROWS

    @property
    def spans(self) -> int:
        return padded(self.columns) // SPAN

    @property
    def units(self) -> int:
        """Of a tile."""
        return packed_shape(self.kind, self.rows, self.columns)[1]

    @property
    def tile_bytes(self) -> int:
        return self.units * KINDS[self.kind].unit_bytes

    @property
    def nbytes(self) -> int:
        return packed_bytes(self.kind, self.rows, self.columns)

    @property
    def share(self) -> int:
        """Tiles of a node; the last ones may have fewer or none."""
        return share_of(self.rows, self.nodes) // ROWS

    @property
    def shards(self) -> tuple[Shard, ...]:
        """What lies at each node, where anything does."""
        firsts = range(0, self.tiles, self.share)
        return tuple(
            Shard(node, first, min(self.share, self.tiles - first), self.address + node * self.gap)
            for node, first in enumerate(firsts)
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor lies in each node's part of the arena: a matrix of `kind`, or a vector of `columns` float32 (kind
    "vector"), which only node 0 has. nbytes: at one node.

    expert: of a bank; None for a matrix of its own. format: the checkpoint's.
    """

    role: str
    expert: int | None
    format: str
    kind: str
    rows: int
    columns: int
    offset: int
    nodes: int = 1

    @property
    def nbytes(self) -> int:
        if self.kind == VECTOR:
            return 4 * padded(self.columns)
        return packed_bytes(self.kind, share_of(self.rows, self.nodes), self.columns)


@dataclass(slots=True)
class PackedWeights:
    """matrices by role, banks (a matrix per expert) by role, vectors float32 padded with zeros to whole spans.

    All of them lie in the arena, in an equal part for each of `nodes` memory nodes.
    """

    arena: NDArray[np.uint8]
    nodes: int = 1
    matrices: dict[str, PackedMatrix] = field(default_factory=dict)
    banks: dict[str, list[PackedMatrix]] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    reencoded: Counter[str] = field(default_factory=Counter)  # format -> matrices that changed their numbers
    kernels: TileKernels = field(default_factory=TileKernels)

    @classmethod
    def of(cls, slots: Sequence[Slot], arena: NDArray[np.uint8]) -> "PackedWeights":
        """The weights that lie, or will lie, in an arena by `slots`."""
        nodes = slots[0].nodes
        weights = cls(arena, nodes)
        gap = arena_bytes(slots) // nodes
        for slot in slots:
            if slot.kind == VECTOR:
                weights.vectors[slot.role] = arena[slot.offset : slot.offset + slot.nbytes].view(np.float32)
                continue
            address = arena.ctypes.data + slot.offset
            matrix = PackedMatrix(slot.kind, slot.rows, slot.columns, address, nodes, gap)
            if slot.expert is None:
                weights.matrices[slot.role] = matrix
            else:
                weights.banks.setdefault(slot.role, []).append(matrix)
            if not FORMATS[slot.format].exact:
                weights.reencoded[slot.format] += 1
        if "head" not in weights.matrices and "embed" in weights.matrices:
            weights.matrices["head"] = weights.matrices["embed"]
        return weights

    @property
    def nbytes(self) -> int:
        return self.arena.nbytes


def share_of(rows: int, nodes: int) -> int:
    """Rows of a matrix at each memory node; at several, whole spans of a record that its product may be rounded to."""
    return padded_rows(rows) if nodes == 1 else padded(-(-rows // nodes))


def packed_size(model: Model, nodes: int = 1) -> int:
    """Bytes that `pack` will allocate, computed from shapes alone. Raises as `slots_of`."""
    return arena_bytes(slots_of(model, nodes))


def arena_bytes(slots: Sequence[Slot]) -> int:
    """Size of the arena that `slots` lie in: an equal part for each node, one after the other."""
    part, nodes = slots[-1].offset + slots[-1].nbytes, slots[-1].nodes
    return part if nodes == 1 else nodes * -(-part // _REGION) * _REGION


def slots_of(model: Model, nodes: int = 1) -> list[Slot]:
    """The slots of all tensors, one after the other. No weight is read.

    Raises UnsupportedModelError where the experts of a layer differ in their packed kind.
    """
    slots, offset = [], 0
    for role, expert, tensor in _tensors(model):
        rows, columns = tensor.shape[-2:] if len(tensor.shape) > 1 else (1, tensor.shape[0])
        kind = format_of(tensor).packed if len(tensor.shape) > 1 else VECTOR
        slots.append(Slot(role, expert, tensor.format, kind, rows, columns, offset, nodes))
        offset += slots[-1].nbytes
    return slots


def pack(model: Model, threads: int | Seating = 1, progress: Progress | None = None) -> PackedWeights:
    """Pack all weights of `model`. Peak memory is the packed size plus a few MiB per thread.

    Each memory node of a seating gets a share of the rows of every matrix, written by threads that are bound to it.
    Raises CheckpointError where a file of the checkpoint was cut or written to since it was opened.
    """
    seating = Seating.of(threads)
    slots = slots_of(model, seating.nodes)
    packed = PackedWeights.of(slots, arena(arena_bytes(slots)))
    size = slots[-1].offset + slots[-1].nbytes
    pieces = [(slot, node) for slot in slots for node in range(1 if slot.kind == VECTOR else seating.nodes)]
    with Crew(seating) as crew:
        done = crew.map(lambda piece: _pack_one(model, *piece, packed.arena), pieces, lambda piece: piece[1])
        for (slot, _), _ in zip(pieces, done, strict=True):
            if progress:
                progress("packing weights", slot.offset + slot.nbytes, size)
    for tensor in model.weights.stored_tensors:
        check_unchanged(*tensor.views(0, max(tensor.shape)))
    return packed


def _tensors(model: Model) -> Iterator[tuple[str, int | None, Tensor]]:
    """Role, expert and the tensor that it lies in."""
    weights = model.weights
    for role in weights.roles:
        if len(weights.shape(role)) == 3:
            experts = weights.tensors_of_experts(role)
            _check_one_kind(role, experts)
            yield from ((role, expert, tensor) for expert, tensor in enumerate(experts))
        elif not (role == "head" and weights.head_is_embedding):
            yield role, None, weights.stored(role)


def _check_one_kind(role: str, experts: Sequence[Tensor]) -> None:
    first, kind = experts[0], format_of(experts[0]).packed
    other = next((tensor for tensor in experts if format_of(tensor).packed != kind), None)
    if other is not None:
        raise UnsupportedModelError(
            f"{other.file}: tensor {other.name!r} ({role}) is {other.format} but another expert's is {first.format}; "
            "convert the model so that all experts of a layer have one format"
        )


def _pack_one(model: Model, slot: Slot, node: int, arena: NDArray[np.uint8]) -> None:
    """A node's share of a tensor."""
    weights = model.weights
    stored = weights.stored(slot.role) if slot.expert is None else weights.expert(slot.role, slot.expert)
    check_unchanged(*stored.views(0, max(stored.shape)))
    if slot.kind == VECTOR:
        values = weights.dense(slot.role)
        arena[slot.offset : slot.offset + values.nbytes].view(np.float32)[:] = values
        return
    # Only here, since rows of q and k that are put in order are a copy, which lives no longer than this.
    tensor = weights.tensor(slot.role) if slot.expert is None else stored
    slab = max(2 * ROWS, _SLAB // padded(slot.columns) // (2 * ROWS) * (2 * ROWS))
    share = share_of(slot.rows, slot.nodes)
    begin, end = node * share, min((node + 1) * share, slot.rows)
    at = node * (arena.nbytes // slot.nodes) + slot.offset
    for first in range(begin, end, slab):
        last = min(first + slab, end)
        check_unchanged(*tensor.views(first, last))
        raw = tensor.rows(first, last)
        start = at + packed_bytes(slot.kind, first - begin, slot.columns)
        shape = packed_shape(slot.kind, len(raw), slot.columns)
        out = arena[start : start + prod(shape)].reshape(shape)
        pack_rows(tensor.format, raw, slot.columns, out)
        release(*tensor.views(first, last))  # mapped pages count as resident
