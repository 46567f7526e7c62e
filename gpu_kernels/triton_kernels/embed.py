"""Rows of a packed matrix as float32."""

import triton.language as tl

from .codes import codes_of, minimum_of, scale_of
from .jit import kernel
from .products import small_float


@kernel
def embed_kernel(tokens, w, tile_bytes, columns, out, stride, count, L: tl.constexpr):
    """Program (t, i): span i of row tokens[t]."""
    token, span = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token >= tl.load(count):
        return
    row = tl.load(tokens + token).to(tl.int64)
    one = tl.zeros((1,), tl.int64)
    unit, lane = one + row // 16 * tile_bytes + span // L.spans * L.unit_bytes, one + row % 16
    if L.form == "codes":
        _store_codes(w, unit, lane, span, columns, out + token * stride, L)
    else:
        column = tl.arange(0, 64)
        at = w + tl.sum(unit, axis=0)
        values = _floats(at, tl.sum(lane, axis=0), column, L)
        tl.store(out + token * stride + 64 * span + column, values, mask=64 * span + column < columns)


@kernel
def _store_codes(w, unit, lane, span, columns, out, L: tl.constexpr):
    ok, number, column = lane >= 0, span % L.spans, tl.arange(0, 32)[:, None]
    PARTS: tl.constexpr = 32 // L.columns
    for half in tl.static_range(2):
        codes = codes_of(w, unit, lane, ok, number, half, L, 1).to(tl.float32)
        for part in tl.static_range(PARTS):
            values = codes * scale_of(w, unit, lane, ok, number, PARTS * half + part, L)[None, :]
            if L.minima:
                values += minimum_of(w, unit, lane, ok, number, PARTS * half + part, L)[None, :]
            at = 64 * span + 32 * half + column
            tl.store(out + at, values, mask=(at < columns) & (column // L.columns == part))


@kernel
def _floats(span, lane, column, L: tl.constexpr):
    """float32 [64]"""
    if L.form == "f32":
        return tl.load(span.to(tl.pointer_type(tl.float32)) + 16 * column + lane)
    elif L.form == "f16":
        return tl.load(span.to(tl.pointer_type(tl.float16)) + 16 * column + lane).to(tl.float32)
    elif L.form == "bf16":
        bits = tl.load(span.to(tl.pointer_type(tl.int16)) + (32 * (column // 2) + 2 * lane + column % 2))
        return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        codes = tl.load(span + (64 + 32 * (column // 2) + 2 * lane + column % 2))
        return small_float(codes) * (tl.load(span.to(tl.pointer_type(tl.float32)) + lane) * 256.0)
