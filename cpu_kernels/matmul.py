"""Matrix products over packed tiles: linear layers, embedding lookup, and the first product of an expert.

Work is claimed in chunks of tiles. Each worker has a scratch area: int64[8] record addresses, then float32 [8][64]
results for each of two matrices, then int64[8] record addresses for the second matrix.
"""

from typing import Any

from numba import float32

from .bfloat import store_span
from .claim import claim
from .descriptor import slots
from .jit import call_product, call_reader, kernel
from .layout import BF16, Q8, ROWS, SPAN
from .memory import float_from_bits, read_i64, row_number, write_i64
from .norm import quantise_span
from .simd import Emit, Value, f32x16, micro_kernel
from .tiles import BLOCK

_FIRST_RESULT, _SECOND_RESULT, _SECOND_ROWS, SCRATCH_BYTES = 64, 64 + 2048, 64 + 4096, 64 + 4096 + 64
FOUR = SPAN // ROWS  # tiles per step of the expert's first product: their rows are a span of the next product's record
_ROW_BYTES = 4 * SPAN  # of a token's results


@micro_kernel()
def _store_tile(e: Emit, source: Value, target: Value, bias: Value, low: Value, high: Value) -> None:
    """target[16] = clamp(source + bias); `bias` addresses zeros where there is none."""
    value = e.b.fadd(e.load(f32x16, e.pointer(source)), e.load(f32x16, e.pointer(bias)))
    e.store(e.clamp(value, e.splat(low), e.splat(high)), e.pointer(target), 0, 4)


@micro_kernel()
def _add_tile(e: Emit, source: Value, target: Value, bias: Value) -> None:
    """target[16] += source + bias."""
    value = e.b.fadd(e.load(f32x16, e.pointer(source)), e.load(f32x16, e.pointer(bias)))
    e.store(e.b.fadd(e.load(f32x16, e.pointer(target)), value), e.pointer(target), 0, 4)


def _activated(e: Emit, gate: Value, up: Value, tiles: Value) -> list[Value]:
    """gate / (1 + exp(-gate)) * up for the rows of `tiles`, 0 beyond them: the 64 values of a span."""
    gates, ups, values = e.pointer(gate), e.pointer(up), []
    for tile in range(FOUR):
        g, u = (e.load(f32x16, results, 64 * tile) for results in (gates, ups))
        silu = e.b.fdiv(g, e.b.fadd(e.constant(f32x16, 1.0), e.exp(e.b.fneg(g))))
        is_there = e.b.icmp_signed("<", e.const(tile), tiles)
        values.append(e.b.select(is_there, e.b.fmul(silu, u), e.zero()))
    return values


@micro_kernel()
def _activate(e: Emit, gate: Value, up: Value, tiles: Value, record: Value, index: Value) -> None:
    """Span `index` of a plain record."""
    for i, value in enumerate(_activated(e, gate, up, tiles)):
        e.store(value, e.at(e.pointer(record), 64 * i), e.b.mul(index, e.const(_ROW_BYTES)), 4)


@micro_kernel()
def _activate_bfloat(e: Emit, gate: Value, up: Value, tiles: Value, record: Value, index: Value) -> None:
    store_span(e, _activated(e, gate, up, tiles), e.pointer(record), index)


@micro_kernel()
def _activate_codes(e: Emit, gate: Value, up: Value, tiles: Value, record: Value, index: Value, columns: Value) -> None:
    quantise_span(e, _activated(e, gate, up, tiles), e.pointer(record), index, columns)


LINEAR_FIELDS = (
    "x", "x_stride", "product", "w", "tile_bytes", "tiles", "spans", "chunk", "out", "out_stride",
    "bias", "add", "low", "high", "count_slot", "rows", "scratch",
)  # fmt: skip
(
    _X, _X_STRIDE, _PRODUCT, _W, _TILE_BYTES, _TILES, _SPANS, _CHUNK, _OUT, _OUT_STRIDE, _BIAS, _ADD, _LOW, _HIGH,
    _COUNT_SLOT, _ROWS, _SCRATCH,
) = slots(LINEAR_FIELDS)  # fmt: skip


@kernel
def linear(d: Any, step: Any, worker: int) -> None:
    """out[t] = clamp(W x[t] + bias, low, high), or out[t] += W x[t] + bias where `add`. Items: chunks of tiles.

    rows: 0, or address of the numbers t of the rows to take.
    """
    count, chunks = step[d[_COUNT_SLOT]], (d[_TILES] + d[_CHUNK] - 1) // d[_CHUNK]
    low, high = float32(float_from_bits(d[_LOW])), float32(float_from_bits(d[_HIGH]))
    scratch = d[_SCRATCH] + worker * SCRATCH_BYTES
    result = scratch + _FIRST_RESULT
    while True:
        item = claim(d, step, worker, chunks)
        if item < 0:
            break
        first = item * d[_CHUNK]
        last = min(first + d[_CHUNK], d[_TILES])
        for start in range(0, count, BLOCK):
            block = min(BLOCK, count - start)
            for t in range(block):
                write_i64(scratch + 8 * t, d[_X] + row_number(d[_ROWS], start + t) * d[_X_STRIDE])
            for tile in range(first, last):
                call_product(d[_PRODUCT], block, d[_W] + tile * d[_TILE_BYTES], d[_SPANS], scratch, result, 64)
                for t in range(block):
                    target = d[_OUT] + row_number(d[_ROWS], start + t) * d[_OUT_STRIDE] + tile * 64
                    if d[_ADD]:
                        _add_tile(result + 64 * t, target, d[_BIAS] + tile * 64)
                    else:
                        _store_tile(result + 64 * t, target, d[_BIAS] + tile * 64, low, high)


EMBED_FIELDS = ("tokens", "reader", "w", "tile_bytes", "spans", "out", "out_stride", "count_slot", "share", "gap")
(
    _E_TOKENS, _E_READER, _E_W, _E_TILE_BYTES, _E_SPANS, _E_OUT, _E_OUT_STRIDE, _E_COUNT, _E_SHARE, _E_GAP,
) = slots(EMBED_FIELDS)  # fmt: skip


@kernel
def embed(d: Any, step: Any, worker: int) -> None:
    """out[t] = row tokens[t] of the embedding, whose tiles lie in shares that are `gap` bytes apart. Items: tokens."""
    while True:
        t = claim(d, step, worker, step[d[_E_COUNT]])
        if t < 0:
            break
        row = read_i64(d[_E_TOKENS] + 8 * t)
        share, tile = row // ROWS // d[_E_SHARE], row // ROWS % d[_E_SHARE]
        at = d[_E_W] + share * d[_E_GAP] + tile * d[_E_TILE_BYTES]
        call_reader(d[_E_READER], at, row % ROWS, d[_E_SPANS], d[_E_OUT] + t * d[_E_OUT_STRIDE])


EXPERT_FIELDS = (
    "x", "x_stride", "product", "table", "tile_bytes", "start", "tiles", "spans", "chunk", "out", "out_stride",
    "second_x", "second_x_stride", "second_product", "second_table", "second_tile_bytes",
    "out_record", "out_columns", "offsets", "order", "active", "num_active", "top_k", "scratch",
)  # fmt: skip
(
    _M_X, _M_X_STRIDE, _M_PRODUCT, _M_TABLE, _M_TILE_BYTES, _M_START, _M_TILES, _M_SPANS, _M_CHUNK, _M_OUT,
    _M_OUT_STRIDE,
    _M_SECOND_X, _M_SECOND_X_STRIDE, _M_SECOND_PRODUCT, _M_SECOND_TABLE, _M_SECOND_TILE_BYTES,
    _M_RECORD, _M_COLUMNS, _M_OFFSETS, _M_ORDER, _M_ACTIVE, _M_NUM_ACTIVE, _M_TOP_K, _M_SCRATCH,
) = slots(EXPERT_FIELDS)  # fmt: skip


@kernel
def _items(d: Any) -> Any:
    """How many chunks an expert has in tiles start .. tiles - 1, and all active experts together."""
    chunks = (d[_M_TILES] - d[_M_START] + d[_M_CHUNK] - 1) // d[_M_CHUNK]
    return chunks, read_i64(d[_M_NUM_ACTIVE]) * chunks


@kernel
def _item(d: Any, item: int, chunks: int) -> Any:
    """An item's expert, its tiles first .. last - 1, and the places start .. end - 1 of the expert's pairs."""
    expert, first = read_i64(d[_M_ACTIVE] + 8 * (item // chunks)), d[_M_START] + item % chunks * d[_M_CHUNK]
    start, end = read_i64(d[_M_OFFSETS] + 8 * expert), read_i64(d[_M_OFFSETS] + 8 * (expert + 1))
    last = min(first + d[_M_CHUNK], d[_M_TILES])
    return expert, first, last, start, end


@kernel
def expert_gate_up(d: Any, step: Any, worker: int) -> None:
    """Row s of out = silu(G_e x) * (U_e x) for the s-th pair in expert order, as the next product's record.

    Items: active experts x chunks of tiles. The record of a pair's token is read in place; nothing is gathered.
    """
    scratch = d[_M_SCRATCH] + worker * SCRATCH_BYTES
    chunks, items = _items(d)
    while True:
        item = claim(d, step, worker, items)
        if item < 0:
            break
        expert, first, last, start, end = _item(d, item, chunks)
        gate, up = read_i64(d[_M_TABLE] + 8 * expert), read_i64(d[_M_SECOND_TABLE] + 8 * expert)
        while start < end:
            block = min(BLOCK, end - start)
            for t in range(block):
                token = read_i64(d[_M_ORDER] + 8 * (start + t)) // d[_M_TOP_K]
                write_i64(scratch + 8 * t, d[_M_X] + token * d[_M_X_STRIDE])
                write_i64(scratch + _SECOND_ROWS + 8 * t, d[_M_SECOND_X] + token * d[_M_SECOND_X_STRIDE])
            for tile in range(first, last, FOUR):
                _gate_up_span(d, block, gate, up, start, tile, scratch)
            start += block


@kernel
def _gate_up_span(d: Any, block: int, gate: int, up: int, start: int, tile: int, scratch: int) -> None:
    """A span of the inner records of `block` pairs; at the end of a matrix it may have fewer than FOUR tiles."""
    rows, others, tiles = scratch, scratch + _SECOND_ROWS, min(FOUR, d[_M_TILES] - tile)
    for i in range(tiles):
        at = tile + i
        first, second = scratch + _FIRST_RESULT + 64 * i, scratch + _SECOND_RESULT + 64 * i
        call_product(d[_M_PRODUCT], block, gate + at * d[_M_TILE_BYTES], d[_M_SPANS], rows, first, _ROW_BYTES)
        w = up + at * d[_M_SECOND_TILE_BYTES]
        call_product(d[_M_SECOND_PRODUCT], block, w, d[_M_SPANS], others, second, _ROW_BYTES)
    for t in range(block):
        first, second = scratch + _FIRST_RESULT + _ROW_BYTES * t, scratch + _SECOND_RESULT + _ROW_BYTES * t
        record = d[_M_OUT] + (start + t) * d[_M_OUT_STRIDE]
        if d[_M_RECORD] == Q8:
            _activate_codes(first, second, tiles, record, tile // FOUR, d[_M_COLUMNS])
        elif d[_M_RECORD] == BF16:
            _activate_bfloat(first, second, tiles, record, tile // FOUR)
        else:
            _activate(first, second, tiles, record, tile // FOUR)
