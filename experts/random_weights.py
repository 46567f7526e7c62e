"""Random weights without a model file: drawn as floats, quantised and packed as a checkpoint's would be."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.layout import KINDS, RECORDS, ROWS, packed_bytes, packed_shape, padded, padded_rows, record_bytes
from .codes import pack_rows
from .formats import FORMATS, Floats
from .memory import arena
from .pack import PackedMatrix, PackedWeights
from .progress import Progress
from .random_codes import fill_codes

FAR = 1 << 28  # bytes of weights that no cache holds
DISTINCT = 16  # experts with numbers of their own; the others repeat them at other addresses
PARTS = ("gate", "up", "down")
_MOST_COPIES = 64
_SLAB = 1 << 20  # numbers drawn at a time: bounds the temporary memory
_SLAB_COST = 32 * _SLAB  # bytes of one slab while it is quantised

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Experts, those that a token goes to, the model's width and an expert's inner width."""

    experts: int
    active: int
    hidden: int
    intermediate: int

    def matrix(self, part: str) -> tuple[int, int]:
        """Rows and columns of an expert's gate, up or down."""
        return (self.hidden, self.intermediate) if part == "down" else (self.intermediate, self.hidden)

    def layer_bytes(self, kind: str) -> int:
        """Packed bytes of one layer."""
        return self.experts * sum(packed_bytes(kind, *self.matrix(part)) for part in PARTS)

    def copies(self, kind: str) -> int:
        """Layers to run in turn: two at least, and as many as it takes to be out of every cache."""
        return min(max(2, -(-4 * FAR // self.layer_bytes(kind))), _MOST_COPIES)

    def needed_bytes(self, kind: str, tokens: int) -> int:
        """Memory that measuring steps of so many tokens takes: weights, activations, routes, the expected output."""
        hidden, inner = (sum(record_bytes(n, record) for record in RECORDS) for n in (self.hidden, self.intermediate))
        pairs = tokens * self.active
        buffers = pairs * (inner + 4 * padded(self.hidden) + 256) + 2 * tokens * hidden + 24 * tokens * self.experts
        expected = 32 * self.hidden * self.intermediate
        return self.copies(kind) * self.layer_bytes(kind) + buffers + max(_SLAB_COST, expected)


def can_encode(name: str) -> bool:
    """Whether float numbers can be turned into format `name` here."""
    return FORMATS[name].encode is not None


def encode(name: str, values: Floats) -> Bytes:
    """float32 rows in format `name`, which `can_encode`: uint8 [rows, bytes per row]."""
    write = FORMATS[name].encode
    assert write is not None
    return write(values)


def random_weights(expert: int, part: str, shape: MoeShape) -> Floats:
    """The float32 numbers, before quantisation, of an expert's matrix; normal, with a deviation of columns^-0.5."""
    return np.concatenate(list(_slabs(expert, part, shape)))


def _slabs(expert: int, part: str, shape: MoeShape) -> Iterator[Floats]:
    rows, columns = shape.matrix(part)
    random = np.random.default_rng([PARTS.index(part), expert % DISTINCT])
    step = max(2 * ROWS, _SLAB // columns // (2 * ROWS) * (2 * ROWS))
    for first in range(0, rows, step):
        yield random.standard_normal((min(step, rows - first), columns), np.float32) * np.float32(columns**-0.5)


def moe_weights(shape: MoeShape, name: str, copies: int, progress: Progress) -> PackedWeights:
    kind, own = FORMATS[name].packed, min(shape.experts, DISTINCT)
    weights = PackedWeights(arena(copies * shape.layer_bytes(kind)))
    layers, first = weights.arena.reshape(copies, -1), 0
    for part in PARTS:
        rows, columns = shape.matrix(part)
        size = packed_bytes(kind, rows, columns)
        bank = layers[0, first : first + shape.experts * size].reshape(shape.experts, size)
        for expert in range(own):
            progress("drawing weights", PARTS.index(part) * own + expert, len(PARTS) * own)
            _fill(shape, name, expert, part, bank[expert])
        for expert in range(own, shape.experts):
            bank[expert] = bank[expert % DISTINCT]
        for layer in range(copies):
            start = layers[layer].ctypes.data + first
            weights.banks[f"layers.{layer}.experts.{part}"] = [
                PackedMatrix(kind, rows, columns, start + expert * size) for expert in range(shape.experts)
            ]
        first += shape.experts * size
    progress("drawing weights", len(PARTS) * own, len(PARTS) * own)
    layers[1:] = layers[0]
    return weights


def _fill(shape: MoeShape, name: str, expert: int, part: str, out: Bytes) -> None:
    rows, columns = shape.matrix(part)
    tiles, at = _tiles(FORMATS[name].packed, rows, columns, out), 0
    for values in _slabs(expert, part, shape):
        count = padded_rows(len(values)) // ROWS
        pack_rows(name, encode(name, values), columns, tiles[at : at + count])
        at += count


def fill_anyhow(kind: str, rows: int, columns: int, out: Bytes) -> None:
    """Numbers that no kernel is slow with: normal floats, or any codes, around zero."""
    tiles, random, codes = _tiles(kind, rows, columns, out), np.random.default_rng(0), KINDS[kind].codes
    if codes is None:
        row = next(row for row in FORMATS.values() if row.packed == kind)
        values = np.zeros((rows, -(-columns // row.block) * row.block), np.float32)
        values[:, :columns] = random.standard_normal((rows, columns), np.float32)
        pack_rows(row.name, encode(row.name, values), columns, tiles)
        return
    fill_codes(codes, tiles, columns**-0.5, random)


def _tiles(kind: str, rows: int, columns: int, out: Bytes) -> Bytes:
    return out.reshape(packed_shape(kind, rows, columns))
