"""Micro-kernels on packed weight tiles: per weight kind a product and a row reader.

`PRODUCTS[kind](count, w, spans, rows, out, stride)`: the tile at `w` times up to BLOCK records, whose addresses are
int64 [count] at `rows`: float32 [count][16] at `out`, `stride` bytes apart.
`READERS[kind](tile, lane, spans, out)`: row `lane` of a tile to float32 [spans * 64] at `out`.
Every argument is an int64.
"""

from ..jit import PRODUCT_SIGNATURE, READER_SIGNATURE, address_of, kernel
from .dot import dot_tile
from .unpack import unpack_row

BLOCK = 8  # most activation records per call of a product

_f32_1, _f32_2, _f32_4, _f32_8 = (dot_tile("f32", n) for n in (1, 2, 4, 8))
_f16_1, _f16_2, _f16_4, _f16_8 = (dot_tile("f16", n) for n in (1, 2, 4, 8))
_bf16_1, _bf16_2, _bf16_4, _bf16_8 = (dot_tile("bf16", n) for n in (1, 2, 4, 8))
_q8_1, _q8_2, _q8_4, _q8_8 = (dot_tile("q8", n) for n in (1, 2, 4, 8))
_q4_1, _q4_2, _q4_4, _q4_8 = (dot_tile("q4", n) for n in (1, 2, 4, 8))
_q4m_1, _q4m_2, _q4m_4, _q4m_8 = (dot_tile("q4m", n) for n in (1, 2, 4, 8))
_unpack_f32, _unpack_f16, _unpack_bf16 = unpack_row("f32"), unpack_row("f16"), unpack_row("bf16")
_unpack_q8, _unpack_q4, _unpack_q4m = unpack_row("q8"), unpack_row("q4"), unpack_row("q4m")


@kernel
def _product_f32(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    if count >= 8:
        _f32_8(w, spans, rows, out, stride)
        return
    if count & 4:
        _f32_4(w, spans, rows, out, stride)
        rows, out = rows + 32, out + 4 * stride
    if count & 2:
        _f32_2(w, spans, rows, out, stride)
        rows, out = rows + 16, out + 2 * stride
    if count & 1:
        _f32_1(w, spans, rows, out, stride)


@kernel
def _read_f32(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f32(tile, lane, spans, out)


@kernel
def _product_f16(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    if count >= 8:
        _f16_8(w, spans, rows, out, stride)
        return
    if count & 4:
        _f16_4(w, spans, rows, out, stride)
        rows, out = rows + 32, out + 4 * stride
    if count & 2:
        _f16_2(w, spans, rows, out, stride)
        rows, out = rows + 16, out + 2 * stride
    if count & 1:
        _f16_1(w, spans, rows, out, stride)


@kernel
def _read_f16(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_f16(tile, lane, spans, out)


@kernel
def _product_bf16(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    if count >= 8:
        _bf16_8(w, spans, rows, out, stride)
        return
    if count & 4:
        _bf16_4(w, spans, rows, out, stride)
        rows, out = rows + 32, out + 4 * stride
    if count & 2:
        _bf16_2(w, spans, rows, out, stride)
        rows, out = rows + 16, out + 2 * stride
    if count & 1:
        _bf16_1(w, spans, rows, out, stride)


@kernel
def _read_bf16(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_bf16(tile, lane, spans, out)


@kernel
def _product_q8(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    if count >= 8:
        _q8_8(w, spans, rows, out, stride)
        return
    if count & 4:
        _q8_4(w, spans, rows, out, stride)
        rows, out = rows + 32, out + 4 * stride
    if count & 2:
        _q8_2(w, spans, rows, out, stride)
        rows, out = rows + 16, out + 2 * stride
    if count & 1:
        _q8_1(w, spans, rows, out, stride)


@kernel
def _read_q8(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q8(tile, lane, spans, out)


@kernel
def _product_q4(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    if count >= 8:
        _q4_8(w, spans, rows, out, stride)
        return
    if count & 4:
        _q4_4(w, spans, rows, out, stride)
        rows, out = rows + 32, out + 4 * stride
    if count & 2:
        _q4_2(w, spans, rows, out, stride)
        rows, out = rows + 16, out + 2 * stride
    if count & 1:
        _q4_1(w, spans, rows, out, stride)


@kernel
def _read_q4(tile: int, lane: int, spans: int, out: int) -> None:
    _unpack_q4(tile, lane, spans, out)


@kernel
def _product_q4m(count: int, w: int, spans: int, rows: int, out: int, stride: int) -> None:
    if count >= 8:
        _q4m_8(w, spans, rows, out, stride)
        return
    if count & 4:
        _q4m_4(w, spans, rows, out, stride)
        rows, out = rows + 32, out + 4 * stride
    if count & 2:
        _q4m_2(w, spans, rows, out, stride)
        rows, out = rows + 16, out + 2 * stride
    if count & 1:
        _q4m_1(w, spans, rows, out, stride)


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
