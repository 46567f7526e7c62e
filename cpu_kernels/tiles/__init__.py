"""Micro-kernels on packed weight tiles: per weight kind a product and a row reader.

`PRODUCTS[kind](count, w, spans, rows, out, stride)`: the tile at `w` times up to BLOCK records, whose addresses are
int64 [count] at `rows`: float32 [count][16] at `out`, `stride` bytes apart.
`READERS[kind](tile, lane, spans, out)`: row `lane` of a tile to float32 [spans * 64] at `out`.
Every argument is an int64. The kernels are written out one by one: what a factory makes would not be cached.
"""

from ..jit import PRODUCT_SIGNATURE, READER_SIGNATURE, address_of, kernel
from .dot import BLOCK, dot_tile
from .floats import dot_floats
from .unpack import unpack_row

__all__ = ["BLOCK", "PRODUCTS", "READERS", "product_address", "reader_address"]

_dot_f32, _unpack_f32 = dot_floats("f32"), unpack_row("f32")


@kernel
def _product_f32(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_f32(count, w, spans, rows, out, stride)


@kernel
def _read_f32(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f32(tile, lane, spans, out)


_dot_f16, _unpack_f16 = dot_floats("f16"), unpack_row("f16")


@kernel
def _product_f16(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_f16(count, w, spans, rows, out, stride)


@kernel
def _read_f16(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f16(tile, lane, spans, out)


_dot_bf16, _unpack_bf16 = dot_floats("bf16"), unpack_row("bf16")


@kernel
def _product_bf16(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_bf16(count, w, spans, rows, out, stride)


@kernel
def _read_bf16(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_bf16(tile, lane, spans, out)


_dot_f8, _unpack_f8 = dot_tile("f8"), unpack_row("f8")


@kernel
def _product_f8(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_f8(count, w, spans, rows, out, stride)


@kernel
def _read_f8(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f8(tile, lane, spans, out)


_dot_q8, _unpack_q8 = dot_tile("q8"), unpack_row("q8")


@kernel
def _product_q8(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q8(count, w, spans, rows, out, stride)


@kernel
def _read_q8(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q8(tile, lane, spans, out)


_dot_q8b, _unpack_q8b = dot_tile("q8b"), unpack_row("q8b")


@kernel
def _product_q8b(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q8b(count, w, spans, rows, out, stride)


@kernel
def _read_q8b(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q8b(tile, lane, spans, out)


_dot_q4, _unpack_q4 = dot_tile("q4"), unpack_row("q4")


@kernel
def _product_q4(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4(count, w, spans, rows, out, stride)


@kernel
def _read_q4(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4(tile, lane, spans, out)


_dot_q4b, _unpack_q4b = dot_tile("q4b"), unpack_row("q4b")


@kernel
def _product_q4b(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4b(count, w, spans, rows, out, stride)


@kernel
def _read_q4b(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4b(tile, lane, spans, out)


_dot_q4m, _unpack_q4m = dot_tile("q4m"), unpack_row("q4m")


@kernel
def _product_q4m(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4m(count, w, spans, rows, out, stride)


@kernel
def _read_q4m(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4m(tile, lane, spans, out)


_dot_q4z, _unpack_q4z = dot_tile("q4z"), unpack_row("q4z")


@kernel
def _product_q4z(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4z(count, w, spans, rows, out, stride)


@kernel
def _read_q4z(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4z(tile, lane, spans, out)


_dot_q4zb, _unpack_q4zb = dot_tile("q4zb"), unpack_row("q4zb")


@kernel
def _product_q4zb(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4zb(count, w, spans, rows, out, stride)


@kernel
def _read_q4zb(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4zb(tile, lane, spans, out)


_dot_q4k, _unpack_q4k = dot_tile("q4k"), unpack_row("q4k")


@kernel
def _product_q4k(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q4k(count, w, spans, rows, out, stride)


@kernel
def _read_q4k(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4k(tile, lane, spans, out)


_dot_q5, _unpack_q5 = dot_tile("q5"), unpack_row("q5")


@kernel
def _product_q5(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q5(count, w, spans, rows, out, stride)


@kernel
def _read_q5(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q5(tile, lane, spans, out)


_dot_q5m, _unpack_q5m = dot_tile("q5m"), unpack_row("q5m")


@kernel
def _product_q5m(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q5m(count, w, spans, rows, out, stride)


@kernel
def _read_q5m(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q5m(tile, lane, spans, out)


_dot_q5k, _unpack_q5k = dot_tile("q5k"), unpack_row("q5k")


@kernel
def _product_q5k(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q5k(count, w, spans, rows, out, stride)


@kernel
def _read_q5k(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q5k(tile, lane, spans, out)


_dot_q6k, _unpack_q6k = dot_tile("q6k"), unpack_row("q6k")


@kernel
def _product_q6k(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q6k(count, w, spans, rows, out, stride)


@kernel
def _read_q6k(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q6k(tile, lane, spans, out)


_dot_q2, _unpack_q2 = dot_tile("q2"), unpack_row("q2")


@kernel
def _product_q2(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q2(count, w, spans, rows, out, stride)


@kernel
def _read_q2(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q2(tile, lane, spans, out)


_dot_q2k, _unpack_q2k = dot_tile("q2k"), unpack_row("q2k")


@kernel
def _product_q2k(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q2k(count, w, spans, rows, out, stride)


@kernel
def _read_q2k(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q2k(tile, lane, spans, out)


_dot_q3k, _unpack_q3k = dot_tile("q3k"), unpack_row("q3k")


@kernel
def _product_q3k(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_q3k(count, w, spans, rows, out, stride)


@kernel
def _read_q3k(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q3k(tile, lane, spans, out)


_dot_iq4, _unpack_iq4 = dot_tile("iq4"), unpack_row("iq4")


@kernel
def _product_iq4(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_iq4(count, w, spans, rows, out, stride)


@kernel
def _read_iq4(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_iq4(tile, lane, spans, out)


_dot_iq4k, _unpack_iq4k = dot_tile("iq4k"), unpack_row("iq4k")


@kernel
def _product_iq4k(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_iq4k(count, w, spans, rows, out, stride)


@kernel
def _read_iq4k(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_iq4k(tile, lane, spans, out)


_dot_mx4, _unpack_mx4 = dot_tile("mx4"), unpack_row("mx4")


@kernel
def _product_mx4(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_mx4(count, w, spans, rows, out, stride)


@kernel
def _read_mx4(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_mx4(tile, lane, spans, out)


_dot_nv4, _unpack_nv4 = dot_tile("nv4"), unpack_row("nv4")


@kernel
def _product_nv4(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    _dot_nv4(count, w, spans, rows, out, stride)


@kernel
def _read_nv4(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_nv4(tile, lane, spans, out)


PRODUCTS = {
    "f32": _product_f32,
    "f16": _product_f16,
    "bf16": _product_bf16,
    "f8": _product_f8,
    "q8": _product_q8,
    "q8b": _product_q8b,
    "q4": _product_q4,
    "q4b": _product_q4b,
    "q4m": _product_q4m,
    "q4z": _product_q4z,
    "q4zb": _product_q4zb,
    "q4k": _product_q4k,
    "q5": _product_q5,
    "q5m": _product_q5m,
    "q5k": _product_q5k,
    "q6k": _product_q6k,
    "q2": _product_q2,
    "q2k": _product_q2k,
    "q3k": _product_q3k,
    "iq4": _product_iq4,
    "iq4k": _product_iq4k,
    "mx4": _product_mx4,
    "nv4": _product_nv4,
}
READERS = {
    "f32": _read_f32,
    "f16": _read_f16,
    "bf16": _read_bf16,
    "f8": _read_f8,
    "q8": _read_q8,
    "q8b": _read_q8b,
    "q4": _read_q4,
    "q4b": _read_q4b,
    "q4m": _read_q4m,
    "q4z": _read_q4z,
    "q4zb": _read_q4zb,
    "q4k": _read_q4k,
    "q5": _read_q5,
    "q5m": _read_q5m,
    "q5k": _read_q5k,
    "q6k": _read_q6k,
    "q2": _read_q2,
    "q2k": _read_q2k,
    "q3k": _read_q3k,
    "iq4": _read_iq4,
    "iq4k": _read_iq4k,
    "mx4": _read_mx4,
    "nv4": _read_nv4,
}


def product_address(kind: str) -> int:
    """The address of a kind's product, compiled on first use."""
    return address_of(PRODUCTS[kind], PRODUCT_SIGNATURE)


def reader_address(kind: str) -> int:
    """The address of a kind's row reader, compiled on first use."""
    return address_of(READERS[kind], READER_SIGNATURE)
