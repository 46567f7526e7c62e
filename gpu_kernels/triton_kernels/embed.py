"""Rows of a packed matrix as float32."""

import triton.language as tl

from .arithmetic import bfloat
from .codes import codes_of, minimum_of, scale_of, words_of
from .floats import small_float
from .jit import kernel


@kernel
def embed_kernel(tokens, w, tile_bytes, columns, out, stride, count, L: tl.constexpr):
    """Program (t, i): span i of row tokens[t]."""
    token, span = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token >= tl.load(count):
        return
    row = tl.load(tokens + token).to(tl.int64)
    unit = w + (row // 16 * tile_bytes + span // L.spans * L.unit_bytes)
    target = out + (token * stride + 64 * span)
    if L.form == "codes":
        one = tl.zeros((1,), tl.int32)
        lines = (one, one + (row % 16).to(tl.int32), one == 0)
        _store_codes(unit, span % L.spans, lines, columns - 64 * span, target, L)
    else:
        column = tl.arange(0, 64)
        tl.store(target + column, _floats(unit, row % 16, column, L), mask=column < columns - 64 * span)


@kernel
def _store_codes(unit, number, lines, columns, out, L: tl.constexpr):
    PARTS: tl.constexpr = 32 // L.columns
    column = tl.arange(0, 32)[:, None]
    for half in tl.static_range(2):
        codes = codes_of(words_of(unit, number, lines, half, L), L, 1).to(tl.float32)
        for part in tl.static_range(PARTS):
            values = codes * scale_of(unit, number, lines, PARTS * half + part, L)[None, :]
            if L.minima:
                values += minimum_of(unit, number, lines, PARTS * half + part, L)[None, :]
            is_own = (column // L.columns == part) & (32 * half + column < columns)
            tl.store(out + 32 * half + column, values, mask=is_own)


@kernel
def _floats(unit, lane, column, L: tl.constexpr):
    """float32 [64]"""
    if L.form == "f32":
        return tl.load(unit.to(tl.pointer_type(tl.float32)) + 16 * column + lane)
    elif L.form == "f16":
        return tl.load(unit.to(tl.pointer_type(tl.float16)) + 16 * column + lane).to(tl.float32)
    elif L.form == "bf16":
        return bfloat(tl.load(unit.to(tl.pointer_type(tl.int16)) + (32 * (column // 2) + 2 * lane + column % 2)))
    else:
        codes = tl.load(unit + (64 + 32 * (column // 2) + 2 * lane + column % 2))
        return small_float(codes) * (tl.load(unit.to(tl.pointer_type(tl.float32)) + lane) * 256.0)
