"""Packing a model: every matrix once from the mapped checkpoint into the runtime layout, in one arena of RAM."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.layout import KINDS, ROWS, SPAN, packed_bytes, padded, padded_rows
from .checkpoint import release
from .checkpoint.base import RawTensor
from .codes import pack_rows
from .errors import UnsupportedModelError
from .formats import format_of
from .memory import arena
from .model import Model
from .progress import Progress

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


@dataclass(slots=True)
class PackedWeights:
    """matrices by role, banks (a matrix per expert) by role, vectors float32 padded with zeros to whole spans."""

    arena: NDArray[np.uint8]
    matrices: dict[str, PackedMatrix] = field(default_factory=dict)
    banks: dict[str, list[PackedMatrix]] = field(default_factory=dict)
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    reencoded: Counter[str] = field(default_factory=Counter)  # format -> matrices that changed their numbers

    @property
    def nbytes(self) -> int:
        return self.arena.nbytes


@dataclass(frozen=True, slots=True)
class _Task:
    role: str
    expert: int | None
    stored: RawTensor
    offset: int


def packed_size(model: Model) -> int:
    """Bytes that `pack` will allocate, computed from shapes alone.

    Raises UnsupportedModelError, as `pack` does, where the experts of a layer differ in their packed kind.
    """
    return sum(_size(tensor) for _, _, tensor in _matrices(model))


def pack(model: Model, threads: int = 1, progress: Progress | None = None) -> PackedWeights:
    """Pack all weights of `model`. Peak memory is the packed size plus a few MiB per thread."""
    tasks, size = [], 0
    for role, expert, tensor in _matrices(model):
        tasks.append(_Task(role, expert, tensor, size))
        size += _size(tensor)
    packed = PackedWeights(arena(size))
    for role in model.weights.roles:
        if _is_vector(model, role):
            values = model.weights.dense(role)
            packed.vectors[role] = np.zeros(padded(values.size), np.float32)
            packed.vectors[role][: values.size] = values
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        for task, matrix in zip(tasks, pool.map(lambda task: _pack_one(model, task, packed.arena), tasks), strict=True):
            _file(packed, task, matrix)
            done += matrix.nbytes
            if progress:
                progress("packing weights", done, size)
    if "head" not in packed.matrices:
        packed.matrices["head"] = packed.matrices["embed"]
    return packed


def _is_vector(model: Model, role: str) -> bool:
    return len(model.weights.shape(role)) == 1


def _matrices(model: Model) -> Iterator[tuple[str, int | None, RawTensor]]:
    """Role, expert and the tensor as it lies in the file; no weight is read."""
    for role in model.weights.roles:
        shape = model.weights.shape(role)
        if len(shape) == 3:
            experts = [model.weights.expert(role, expert) for expert in range(shape[0])]
            _check_one_kind(role, experts)
            yield from ((role, expert, tensor) for expert, tensor in enumerate(experts))
        elif len(shape) == 2 and not (role == "head" and model.weights.head_is_embedding):
            yield role, None, model.weights.stored(role)


def _check_one_kind(role: str, experts: list[RawTensor]) -> None:
    first, kind = experts[0], format_of(experts[0]).packed
    other = next((tensor for tensor in experts if format_of(tensor).packed != kind), None)
    if other is not None:
        raise UnsupportedModelError(
            f"{other.file}: tensor {other.name!r} ({role}) is {other.format} but another expert's is {first.format}; "
            "convert the model so that all experts of a layer have one format"
        )


def _size(tensor: RawTensor) -> int:
    rows, columns = tensor.shape
    return packed_bytes(format_of(tensor).packed, rows, columns)


def _file(packed: PackedWeights, task: _Task, matrix: PackedMatrix) -> None:
    if task.expert is None:
        packed.matrices[task.role] = matrix
    else:
        packed.banks.setdefault(task.role, []).append(matrix)
    if not format_of(task.stored).exact:
        packed.reencoded[task.stored.format] += 1


def _pack_one(model: Model, task: _Task, arena: NDArray[np.uint8]) -> PackedMatrix:
    # Only here, since rows of q and k that are put in order are a copy, which lives no longer than this.
    tensor = model.weights.tensor(task.role) if task.expert is None else task.stored
    rows, columns = tensor.shape
    kind = format_of(tensor).packed
    spans, span_bytes = padded(columns) // SPAN, KINDS[kind].span_bytes
    tile_bytes = spans * span_bytes
    slab = max(2 * ROWS, _SLAB // padded(columns) // (2 * ROWS) * (2 * ROWS))
    for first in range(0, rows, slab):
        raw = tensor.data[first : first + slab]
        start = task.offset + first // ROWS * tile_bytes
        tiles = padded_rows(len(raw)) // ROWS
        out = arena[start : start + tiles * tile_bytes].reshape(tiles, spans, span_bytes)
        pack_rows(tensor.format, np.ascontiguousarray(raw), columns, out)
        release(replace(tensor, data=raw))  # mapped pages count as resident
    return PackedMatrix(kind, rows, columns, arena.ctypes.data + task.offset)
