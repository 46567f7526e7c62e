"""Whether a tile kernel computes what `reference` defines, on a tile of real weights with activations made up."""

import numpy as np
from numpy.typing import NDArray

from .. import reference
from ..jit import call_product, call_reader, kernel
from ..layout import KINDS, ROWS, SPAN, Record, record_bytes
from .choice import TileKernel
from .dot import BLOCK

_TOLERANCE = 1e-5  # of the sum of the terms' magnitudes: float32 sums in their own order
_NOTHING = 1e-25  # is added to that sum: what is so small may be taken for zero
_READ_TOLERANCE = 1e-6  # of the largest weight

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@kernel
def _multiply(address: int, count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    call_product(address, count, w, spans, rows, out, stride)


@kernel
def _read(address: int, tile: int, lane: int, spans: int, out: int) -> None:
    call_reader(address, tile, lane, spans, out)


def fault_on(tested: TileKernel, tile: Bytes) -> str | None:
    """What is wrong with the kernel's result on a tile; None if nothing.

    tile: uint8 [units, unit_bytes] on a border of 64 bytes. Rows with weights that are not finite are left out.
    """
    values = reference.unpack(tested.kind, tile[None], ROWS, SPAN * KINDS[tested.kind].spans * len(tile))
    finite = np.asarray(np.isfinite(values).all(axis=1))
    check = _product_fault if tested.part == "product" else _reader_fault
    with np.errstate(invalid="ignore", over="ignore"):  # of what was left out, or of a wrong result
        return check(tested, tile, values, finite)


def _product_fault(tested: TileKernel, tile: Bytes, values: Floats, finite: NDArray[np.bool_]) -> str | None:
    form = KINDS[tested.kind].record
    x = _activations(values.shape[1])
    records = _records(x, form)
    addresses = records.ctypes.data + records.strides[0] * np.arange(BLOCK)
    x = reference.recorded(x, form)
    weights = values[finite].astype(np.float64)
    expected = x.astype(np.float64) @ weights.T
    magnitude = np.abs(x).astype(np.float64) @ np.abs(weights).T + _NOTHING
    spans, together = values.shape[1] // SPAN, None
    for count in range(BLOCK, 0, -1):
        got = np.full((count, ROWS), np.nan, np.float32)
        _multiply(
            tested.address, count, tile.ctypes.data, spans, addresses.ctypes.data, got.ctypes.data, got.strides[0]
        )
        got = got[:, finite]
        error = float((np.abs(got - expected[:count]) / magnitude[:count]).max(initial=0.0))
        if not error <= _TOLERANCE:
            return f"for {count} tokens it is off by {error:.2g} of the terms' sum"
        together = got if together is None else together
        if not np.array_equal(got, together[:count]):
            return f"{count} tokens give other bits than {BLOCK}"
    return None


def _reader_fault(tested: TileKernel, tile: Bytes, values: Floats, finite: NDArray[np.bool_]) -> str | None:
    row = np.empty(values.shape[1], np.float32)
    limit = _READ_TOLERANCE * float(np.abs(values[finite]).max(initial=0.0))
    for lane in np.flatnonzero(finite):
        row[:] = np.nan
        _read(tested.address, tile.ctypes.data, int(lane), values.shape[1] // SPAN, row.ctypes.data)
        error = float(np.abs(row - values[lane]).max())
        if not error <= limit:
            return f"row {lane} is off by {error:.2g}"
    return None


def _activations(columns: int) -> Floats:
    """[BLOCK, columns]: two rows whose codes are all at an end, and normal numbers of all sizes."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((BLOCK, columns), np.float32) * np.exp2(
        rng.integers(-4, 5, (BLOCK, columns // SPAN))
    ).repeat(SPAN, axis=1).astype(np.float32)
    x[0], x[1] = 1, -1
    return np.asarray(x, np.float32)


def _records(x: Floats, form: Record) -> Bytes:
    """The records that hold rows x (see `layout`), on borders of 64 bytes."""
    size = record_bytes(x.shape[1], form)
    memory = np.zeros(len(x) * size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    records = memory[start : start + len(x) * size].reshape(len(x), size)
    for row, record in zip(x, records, strict=True):
        content = reference.record_content(row, form)
        record[: content.size] = content
    return records
