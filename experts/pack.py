"""Packing a model: every matrix once from the mapped checkpoint into the runtime layout, in one arena of RAM."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.layout import KINDS, ROWS, SPAN, packed_bytes, padded, padded_rows
from .checkpoint import release
from .checkpoint.base import RawTensor
from .codes import pack_rows
from .errors import UnsupportedModelError
from .formats import FORMATS, format_of
from .memory import arena
from .model import Model
from .progress import Progress

VECTOR = "vector"
_SLAB = 1 << 20  # elements unpacked at a time: bounds the temporary memory


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A matrix [rows, columns] in tiles at `address`; the arena owns the memory."""

    kind: str
    rows: int
    columns: int
    address: int

    @property
    def tiles(self) -> int:
        return padded_rows(self.rows) // ROWS

    @property
    def spans(self) -> int:
        return padded(self.columns) // SPAN

    @property
    def tile_bytes(self) -> int:
        return self.spans * KINDS[self.kind].span_bytes

    @property
    def nbytes(self) -> int:
        return packed_bytes(self.kind, self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor lies in the arena: a matrix of `kind`, or a vector of `columns` float32 (kind "vector").

    expert: of a bank; None for a matrix of its own. format: the checkpoint's.
    """

    role: str
    expert: int | None
    format: str
    kind: str
    rows: int
    columns: int
    offset: int

    @property
    def nbytes(self) -> int:
        if self.kind == VECTOR:
            return 4 * padded(self.columns)
        return packed_bytes(self.kind, self.rows, self.columns)


@dataclass(slots=True)
class PackedWeights:
    """matrices by role, banks (a matrix per expert) by role, vectors float32 padded with zeros to whole spans.

    All of them lie in the arena.
    """

    arena: NDArray[np.uint8]
    matrices: dict[str, PackedMatrix] = field(default_factory=dict)
    banks: dict[str, list[PackedMatrix]] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    reencoded: Counter[str] = field(default_factory=Counter)  # format -> matrices that changed their numbers

    @classmethod
    def of(cls, slots: Sequence[Slot], arena: NDArray[np.uint8]) -> "PackedWeights":
        """The weights that lie, or will lie, in an arena by `slots`."""
        weights = cls(arena)
        for slot in slots:
            if slot.kind == VECTOR:
                weights.vectors[slot.role] = arena[slot.offset : slot.offset + slot.nbytes].view(np.float32)
                continue
            matrix = PackedMatrix(slot.kind, slot.rows, slot.columns, arena.ctypes.data + slot.offset)
            if slot.expert is None:
                weights.matrices[slot.role] = matrix
            else:
                weights.banks.setdefault(slot.role, []).append(matrix)
            if not FORMATS[slot.format].exact:
                weights.reencoded[slot.format] += 1
        if "head" not in weights.matrices:
            weights.matrices["head"] = weights.matrices["embed"]
        return weights

    @property
    def nbytes(self) -> int:
        return self.arena.nbytes


def packed_size(model: Model) -> int:
    """Bytes that `pack` will allocate, computed from shapes alone. Raises as `slots_of`."""
    return arena_bytes(slots_of(model))


def arena_bytes(slots: Sequence[Slot]) -> int:
    """Size of the arena that `slots` lie in."""
    return slots[-1].offset + slots[-1].nbytes


def slots_of(model: Model) -> list[Slot]:
    """The slots of all tensors, one after the other. No weight is read.

    Raises UnsupportedModelError where the experts of a layer differ in their packed kind.
    """
    slots, offset = [], 0
    for role, expert, tensor in _tensors(model):
        rows, columns = tensor.shape if len(tensor.shape) > 1 else (1, tensor.shape[0])
        kind = format_of(tensor).packed if len(tensor.shape) > 1 else VECTOR
        slots.append(Slot(role, expert, tensor.format, kind, rows, columns, offset))
        offset += slots[-1].nbytes
    return slots


def pack(model: Model, threads: int = 1, progress: Progress | None = None) -> PackedWeights:
    """Pack all weights of `model`. Peak memory is the packed size plus a few MiB per thread."""
    slots = slots_of(model)
    size = arena_bytes(slots)
    packed = PackedWeights.of(slots, arena(size))
    with ThreadPoolExecutor(threads) as pool:
        pieces = pool.map(lambda slot: _pack_one(model, slot, packed.arena), slots)
        for slot, _ in zip(slots, pieces, strict=True):
            if progress:
                progress("packing weights", slot.offset + slot.nbytes, size)
    return packed


def _tensors(model: Model) -> Iterator[tuple[str, int | None, RawTensor]]:
    """Role, expert and the tensor as it lies in the file."""
    weights = model.weights
    for role in weights.roles:
        shape = weights.shape(role)
        if len(shape) == 3:
            experts = [weights.expert(role, expert) for expert in range(shape[0])]
            _check_one_kind(role, experts)
            yield from ((role, expert, tensor) for expert, tensor in enumerate(experts))
        elif not (role == "head" and weights.head_is_embedding):
            yield role, None, weights.stored(role)


def _check_one_kind(role: str, experts: list[RawTensor]) -> None:
    first, kind = experts[0], format_of(experts[0]).packed
    other = next((tensor for tensor in experts if format_of(tensor).packed != kind), None)
    if other is not None:
        raise UnsupportedModelError(
            f"{other.file}: tensor {other.name!r} ({role}) is {other.format} but another expert's is {first.format}; "
            "convert the model so that all experts of a layer have one format"
        )


def _pack_one(model: Model, slot: Slot, arena: NDArray[np.uint8]) -> None:
    if slot.kind == VECTOR:
        values = model.weights.dense(slot.role)
        arena[slot.offset : slot.offset + values.nbytes].view(np.float32)[:] = values
        return
    weights = model.weights
    # Only here, since rows of q and k that are put in order are a copy, which lives no longer than this.
    tensor = weights.tensor(slot.role) if slot.expert is None else weights.expert(slot.role, slot.expert)
    spans, span_bytes = padded(slot.columns) // SPAN, KINDS[slot.kind].span_bytes
    tile_bytes = spans * span_bytes
    slab = max(2 * ROWS, _SLAB // padded(slot.columns) // (2 * ROWS) * (2 * ROWS))
    for first in range(0, slot.rows, slab):
        raw = tensor.data[first : first + slab]
        start = slot.offset + first // ROWS * tile_bytes
        tiles = padded_rows(len(raw)) // ROWS
        out = arena[start : start + tiles * tile_bytes].reshape(tiles, spans, span_bytes)
        pack_rows(tensor.format, np.ascontiguousarray(raw), slot.columns, out)
        release(replace(tensor, data=raw))  # mapped pages count as resident
