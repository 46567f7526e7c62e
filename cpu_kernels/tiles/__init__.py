"""Micro-kernels on packed weight tiles: per weight kind a product and a row reader.

`PRODUCTS[kind](count, w, spans, rows, out, stride)`: the tile at `w` times up to BLOCK records, whose addresses are
int64 [count] at `rows`: float32 [count][16] at `out`, `stride` bytes apart.
`READERS[kind](tile, lane, spans, out)`: row `lane` of a tile to float32 [spans * 64] at `out`.
Every argument is an int64. The kernels are written out one by one: what a factory makes would not be cached.
"""

from ..jit import PRODUCT_SIGNATURE, READER_SIGNATURE, address_of, kernel
from .dot import BLOCK, dot_tile
from .unpack import unpack_row

__all__ = ["BLOCK", "PRODUCTS", "READERS", "product_address", "reader_address"]

_dot_f32, _dot_f16, _dot_bf16, _dot_q8, _dot_q4, _dot_q4m = (
    dot_tile(kind) for kind in ("f32", "f16", "bf16", "q8", "q4", "q4m")
)
_unpack_f32, _unpack_f16, _unpack_bf16, _unpack_q8, _unpack_q4, _unpack_q4m = (
    unpack_row(kind) for kind in ("f32", "f16", "bf16", "q8", "q4", "q4m")
)


@kernel
def _product_f32(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_f32(count, w, spans, rows, out, stride)


@kernel
def _read_f32(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f32(tile, lane, spans, out)


@kernel
def _product_f16(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_f16(count, w, spans, rows, out, stride)


@kernel
def _read_f16(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f16(tile, lane, spans, out)


@kernel
def _product_bf16(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_bf16(count, w, spans, rows, out, stride)


@kernel
def _read_bf16(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_bf16(tile, lane, spans, out)


@kernel
def _product_q8(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q8(count, w, spans, rows, out, stride)


@kernel
def _read_q8(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q8(tile, lane, spans, out)


@kernel
def _product_q4(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4(count, w, spans, rows, out, stride)


@kernel
def _read_q4(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4(tile, lane, spans, out)


@kernel
def _product_q4m(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4m(count, w, spans, rows, out, stride)


@kernel
def _read_q4m(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4m(tile, lane, spans, out)


PRODUCTS = {
    "f32": _product_f32,
    "f16": _product_f16,
    "bf16": _product_bf16,
    "q8": _product_q8,
    "q4": _product_q4,
    "q4m": _product_q4m,
}
READERS = {
    "f32": _read_f32,
    "f16": _read_f16,
    "bf16": _read_bf16,
    "q8": _read_q8,
    "q4": _read_q4,
    "q4m": _read_q4m,
}


def product_address(kind: str) -> int:
    """The address of a kind's product, compiled on first use."""
    return address_of(PRODUCTS[kind], PRODUCT_SIGNATURE)


def reader_address(kind: str) -> int:
    """The address of a kind's row reader, compiled on first use."""
    return address_of(READERS[kind], READER_SIGNATURE)
