"""Random packed matrices with the float numbers that they stand for, and the matrix ops run on them by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from isotherm.cpu_kernels.descriptor import N_LOGITS, N_TOKENS
from isotherm.cpu_kernels.down import FIELDS as DOWN_FIELDS
from isotherm.cpu_kernels.down import SCRATCH_BYTES as DOWN_BYTES
from isotherm.cpu_kernels.down import expert_down
from isotherm.cpu_kernels.layout import (
    CODES,
    E4M3,
    GROUP,
    KINDS,
    RECORDS,
    SPAN,
    Codes,
    Record,
    packed_shape,
    padded,
    padded_rows,
    record_bytes,
)
from isotherm.cpu_kernels.matmul import (
    EXPERT_FIELDS,
    LINEAR_FIELDS,
    SCRATCH_BYTES,
    expert_gate_up,
    linear,
)
from isotherm.cpu_kernels.packing import pack_codes, pack_eights, pack_floats, pack_headers, pack_pairs
from isotherm.cpu_kernels.reference import bfloat_bits, group, record_content, recorded
from isotherm.cpu_kernels.tiles import product_address
from numpy.typing import NDArray
from support.ops import run_op
from support.parts import put_parts

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Matrix:
    """A packed matrix of `kind`; values are its numbers, float32 [rows, columns]; tiles uint8, 64-byte aligned."""

    kind: str
    values: Array
    tiles: NDArray[np.uint8]

    @property
    def quantised(self) -> bool:
        return KINDS[self.kind].codes is not None

    @property
    def record(self) -> Record:
        return KINDS[self.kind].record

    @property
    def tile_bytes(self) -> int:
        return self.tiles.strides[0]

    @property
    def fields(self) -> dict[str, int]:
        """Descriptor fields of a product by it."""
        spans = padded(self.values.shape[1]) // SPAN
        sizes = {"tile_bytes": self.tile_bytes, "tiles": len(self.tiles), "spans": spans}
        return sizes | {"product": product_address(self.kind)}


def line_aligned(shape: tuple[int, ...], fill: int = 0) -> NDArray[np.uint8]:
    """uint8 of `shape` on a cache line border."""
    size = int(np.prod(shape))
    memory = np.full(size + 64, fill, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].reshape(shape)


def random_matrix(kind: str, rows: int, columns: int, seed: int = 0, code: int | None = None) -> Matrix:
    """Codes over the whole range of the kind (or all the same), or normal floats."""
    rng = np.random.default_rng([seed, rows, columns])
    tiles = line_aligned(packed_shape(kind, rows, columns))
    if KINDS[kind].codes:
        return Matrix(kind, _fill_codes(kind, rows, columns, rng, tiles, code), tiles)
    if kind == "f8":
        return Matrix(kind, _fill_eights(rows, columns, rng, tiles), tiles)
    values = rng.standard_normal((rows, columns), np.float32)
    bits: NDArray[np.generic] = values.view(np.uint32)
    if kind == "f16":
        bits = values.astype(np.float16).view(np.uint16)
        values = bits.view(np.float16).astype(np.float32)
    elif kind == "bf16":
        bits = bfloat_bits(values)
        values = recorded(values, "bf16")
    (pack_pairs if kind == "bf16" else pack_floats)(bits, tiles)
    return Matrix(kind, values, tiles)


def _fill_eights(rows: int, columns: int, rng: np.random.Generator, tiles: NDArray[np.uint8]) -> Array:
    """All finite codes, with a scale of its own for each row and 64 columns."""
    spans = padded(columns) // SPAN
    codes = rng.integers(0, 127, (rows, spans, SPAN)) + 128 * rng.integers(0, 2, (rows, spans, SPAN))
    codes.reshape(rows, -1)[:, columns:] = 0
    scales = rng.uniform(-0.01, 0.01, (rows, spans, 1)).astype(np.float32)
    pack_eights(np.concatenate([scales.view(np.uint8), codes.astype(np.uint8)], axis=-1), tiles)
    values = np.array(E4M3, np.float32)[codes] * scales
    return np.asarray(values.reshape(rows, -1)[:, :columns], np.float32)


def _fill_codes(
    kind: str, rows: int, columns: int, rng: np.random.Generator, tiles: NDArray[np.uint8], code: int | None
) -> Array:
    """Whole groups of random codes; a last group that is not whole ends in columns that x has as zeros."""
    layout, width = CODES[kind], -(-columns // GROUP) * GROUP
    codes = rng.integers(0, 2 ** (layout.low + layout.high), (rows, width)).astype(np.uint8)
    if code is not None:
        codes[:] = code
    pack_codes(codes, layout, tiles)
    signed = (np.array(layout.unsigned) - layout.offset).astype(np.float32)[codes]
    scales, minima = (_fill_parts if layout.parts else _fill_scales)(layout, rows, width // layout.columns, rng, tiles)
    values = signed * np.repeat(scales, layout.columns, 1) + np.repeat(minima, layout.columns, 1)
    return np.asarray(values[:, :columns], np.float32)


def _fill_scales(
    layout: Codes, rows: int, count: int, rng: np.random.Generator, tiles: NDArray[np.uint8]
) -> tuple[Array, Array]:
    """Scales and minima [rows, count]; zeros where the kind has no minima."""
    scales = rng.uniform(-0.1, 0.1, (rows, count)).astype(np.float32)
    bits = (scales.view(np.uint32) >> 16).astype(np.uint16) if layout.bfloat else scales.astype(np.float16)
    pack_headers(bits, 0, tiles, layout.columns)
    scales = (bits.astype(np.uint32) << 16).view(np.float32) if layout.bfloat else bits.astype(np.float32)
    if layout.zeros:
        zeros = -rng.integers(0, 17, scales.shape).astype(np.float32)
        bits = (zeros.view(np.uint32) >> 16).astype(np.uint16) if layout.bfloat else zeros.astype(np.float16)
        pack_headers(bits, layout.minima_at, tiles, layout.columns)
        return scales, zeros * scales
    if layout.minima:
        minima = rng.uniform(-1, 1, scales.shape).astype(np.float16)
        pack_headers(minima, layout.minima_at, tiles, layout.columns)
        return scales, minima.astype(np.float32)
    return scales, np.zeros_like(scales)


def _fill_parts(
    layout: Codes, rows: int, count: int, rng: np.random.Generator, tiles: NDArray[np.uint8]
) -> tuple[Array, Array]:
    """The same where they are of two levels, with parts of the whole range."""
    least, most = layout.part_range
    parts = [rng.integers(least, most + 1, (rows, count)) for _ in range(1 + layout.minima)]
    sizes = (0.1, 1.0)[: len(parts)]
    most = max(-least, most)
    halves = [(size / most * rng.uniform(-1, 1, (rows, tiles.shape[1]))).astype(np.float16) for size in sizes]
    for half, at in zip(halves, (0, layout.minima_at), strict=False):
        pack_headers(half, at, tiles, SPAN * layout.spans)
    put_parts(layout, tiles, *parts)
    each = SPAN * layout.spans // layout.columns
    wide = [np.repeat(half.astype(np.float32), each, 1)[:, :count] for half in halves]
    scales, *minima = (half * part.astype(np.float32) for half, part in zip(wide, parts, strict=True))
    return scales, minima[0] if minima else np.zeros_like(scales)


def random_rows(count: int, columns: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, columns]).standard_normal((count, columns), np.float32)


def records(x: Array, form: Record) -> NDArray[np.uint8]:
    """The activation records of rows x."""
    out = line_aligned((len(x), record_bytes(x.shape[1], form)))
    for row, record in zip(x, out, strict=True):
        content = record_content(row, form)
        record[: content.size] = content
    return out


def multiply(
    matrix: Matrix,
    x: Array,
    *,
    threads: int = 1,
    bias: Array | None = None,
    onto: Array | None = None,
    clamp: float = np.inf,
    chunk: int = 2,
    taken: Sequence[int] | None = None,
) -> Array:
    """`linear` on rows x [T, columns], or only on those that are `taken`: [T, rows], 7 in rows that are not.

    What lies beyond the padded rows must stay as it is.
    """
    numbers = np.array(range(len(x)) if taken is None else taken, np.int64)
    rows = len(matrix.values)
    width = padded_rows(rows)
    form = records(x, matrix.record)
    out = np.full((len(x), width + 16), 7, np.float32)
    if onto is not None:
        out[:, :rows] = onto
    biases = np.zeros(width, np.float32)
    if bias is not None:
        biases[:rows] = bias
    fields = {"x": form, "x_stride": form.strides[0], "w": matrix.tiles, "chunk": chunk, "out": out, **matrix.fields}
    fields |= {"out_stride": out.strides[0], "bias": biases, "add": int(onto is not None), "low": -float(clamp)}
    fields |= {"high": float(clamp), "count_slot": N_LOGITS, "rows": 0 if taken is None else numbers}
    fields["scratch"] = line_aligned((threads, SCRATCH_BYTES), 0xFF)
    run_op(linear, LINEAR_FIELDS, fields, step={N_LOGITS: len(numbers)}, threads=threads)
    assert (out[:, width:] == 7).all()
    return out[:, :rows]


@dataclass(frozen=True)
class Bank:
    """One gate, up and down matrix per expert: gate, up [inner, hidden], down [hidden, inner]."""

    gate: list[Matrix]
    up: list[Matrix]
    down: list[Matrix]

    @classmethod
    def random(cls, experts: int, hidden: int, inner: int, kinds: tuple[str, str, str]) -> "Bank":
        shapes = ((inner, hidden), (inner, hidden), (hidden, inner))
        return cls(
            *(
                [random_matrix(kind, *shape, seed=10 * part + expert) for expert in range(experts)]
                for part, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
            )
        )


def run_experts(
    bank: Bank,
    x: Array,
    ids: NDArray[np.int64],
    *,
    threads: int = 1,
    onto: Array | None = None,
    chunk: int = 4,
    taken: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.uint8], Array, NDArray[np.int64]]:
    """Both expert ops for tokens x [T, hidden] with choices ids [T, K].

    Returns the inner records and the outputs [T*K, hidden], both in expert order, and the place of each pair.
    With `onto` [T, hidden], the outputs of each token are added up to it, weighted 1 / (1 + the choice's rank); with
    `taken` [T] too, to the row of that number.
    """
    experts, top_k = len(bank.gate), ids.shape[1]
    offsets, order, position, active = group(ids, experts)
    gate, up, down = bank.gate[0], bank.up[0], bank.down[0]
    inner, hidden = gate.values.shape
    form, second_form = records(x, gate.record), records(x, up.record)
    between = line_aligned((order.size, record_bytes(inner, down.record)))
    outs = np.full((order.size, padded_rows(hidden) + 16), 7, np.float32)
    table, second, third = (
        np.array([m.tiles.ctypes.data for m in part], np.int64) for part in (bank.gate, bank.up, bank.down)
    )
    shared = {
        "offsets": offsets, "order": order, "active": active, "num_active": np.array([active.size]), "top_k": top_k,
        "scratch": line_aligned((threads, SCRATCH_BYTES), 0xFF), "chunk": chunk,
    }  # fmt: skip
    first = {
        "x": form, "x_stride": form.strides[0], "table": table, "out": between, "out_stride": between.strides[0],
        "second_x": second_form, "second_x_stride": second_form.strides[0],
        "second_product": product_address(up.kind), "second_table": second, "second_tile_bytes": up.tile_bytes,
        "out_record": RECORDS.index(down.record),
        "out_columns": padded(inner), **gate.fields,
    }  # fmt: skip
    run_op(expert_gate_up, EXPERT_FIELDS, shared | first, step={N_TOKENS: len(x)}, threads=threads)
    last = {"x": between, "x_stride": between.strides[0], "table": third, "out": outs, "out_stride": outs.strides[0]}
    weights = np.tile(np.float32(1) / np.arange(1, top_k + 1, dtype=np.float32), (len(x), 1))
    last |= {"position": position, "weights": weights, "gate": 0, "gate_stride": 0, "n": hidden}
    scratch = line_aligned((threads + 1, DOWN_BYTES), 0xFF)
    last |= {"scratch": scratch, "scratch_stride": DOWN_BYTES}
    last |= {"rows": 0 if taken is None else taken}
    last |= {"few": 0 if onto is None else ids.size, "sum": onto if onto is not None else 0, "sum_stride": 4 * hidden}
    row = shared | last | down.fields
    run_op(
        expert_down,
        DOWN_FIELDS,
        {name: value for name, value in row.items() if name in DOWN_FIELDS},
        step={N_TOKENS: len(x)},
        threads=threads,
    )
    assert (outs[:, padded_rows(hidden) :] == 7).all()
    assert (scratch[threads] == 0xFF).all()
    return between, outs[:, :hidden], position
