"""Micro-kernels on packed weight tiles, one function per weight kind, picked by the kind's number."""

from ..jit import kernel
from ..layout import KINDS
from .dot import dot_tile
from .unpack import unpack_row

BLOCK = 8  # most activation records per call of `multiply`

_f32_1, _f32_2, _f32_4, _f32_8 = (dot_tile("f32", n) for n in (1, 2, 4, 8))
_f16_1, _f16_2, _f16_4, _f16_8 = (dot_tile("f16", n) for n in (1, 2, 4, 8))
_bf16_1, _bf16_2, _bf16_4, _bf16_8 = (dot_tile("bf16", n) for n in (1, 2, 4, 8))
_q8_1, _q8_2, _q8_4, _q8_8 = (dot_tile("q8", n) for n in (1, 2, 4, 8))
_q4_1, _q4_2, _q4_4, _q4_8 = (dot_tile("q4", n) for n in (1, 2, 4, 8))
_q4m_1, _q4m_2, _q4m_4, _q4m_8 = (dot_tile("q4m", n) for n in (1, 2, 4, 8))
_unpack_f32, _unpack_f16, _unpack_bf16 = unpack_row("f32"), unpack_row("f16"), unpack_row("bf16")
_unpack_q8, _unpack_q4, _unpack_q4m = unpack_row("q8"), unpack_row("q4"), unpack_row("q4m")

F32, F16, BF16, Q8, Q4, Q4M = (KINDS[name].code for name in ("f32", "f16", "bf16", "q8", "q4", "q4m"))


@kernel
def _multiply_f32(count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
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
def _multiply_f16(count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
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
def _multiply_bf16(count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
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
def _multiply_q8(count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
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
def _multiply_q4(count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
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
def _multiply_q4m(count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
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
def multiply(kind, count, w, spans, rows, out, stride):  # type: ignore[no-untyped-def]
    """One tile at `w` times up to BLOCK records: float32 [count][16] at `out`, `stride` bytes apart.

    `rows` is the address of int64[count], the records' addresses.
    """
    if kind == F32:
        _multiply_f32(count, w, spans, rows, out, stride)
    elif kind == F16:
        _multiply_f16(count, w, spans, rows, out, stride)
    elif kind == BF16:
        _multiply_bf16(count, w, spans, rows, out, stride)
    elif kind == Q8:
        _multiply_q8(count, w, spans, rows, out, stride)
    elif kind == Q4:
        _multiply_q4(count, w, spans, rows, out, stride)
    else:
        _multiply_q4m(count, w, spans, rows, out, stride)


@kernel
def unpack(kind, tile, lane, spans, out):  # type: ignore[no-untyped-def]
    """Row `lane` of a tile to float32[spans * 64] at `out`."""
    if kind == F32:
        _unpack_f32(tile, lane, spans, out)
    elif kind == F16:
        _unpack_f16(tile, lane, spans, out)
    elif kind == BF16:
        _unpack_bf16(tile, lane, spans, out)
    elif kind == Q8:
        _unpack_q8(tile, lane, spans, out)
    elif kind == Q4:
        _unpack_q4(tile, lane, spans, out)
    else:
        _unpack_q4m(tile, lane, spans, out)
