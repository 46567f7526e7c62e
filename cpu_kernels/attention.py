"""Paged causal attention with grouped query heads, over the cache that `rope` fills.

An item is a query block (up to QUERY_BLOCK consecutive tokens of one sequence) and a KV head. Its rows (token by token,
and head by head in a token) are worked on in *states* of up to 8 rows, and those in tiles of rows that share each
vector of k and v. The context is walked in strides of 4 KV blocks that begin at multiples of 64 positions: scores, a
running softmax, values. What a row does not see has weight 0 exactly, so a row's bits depend on its own position only,
not on the rows beside it.
"""

from typing import Any

from .attention_tiles import (
    FACTORS,
    FIRST,
    LAST,
    MAXIMA,
    PLACE,
    PLACES,
    ROW_BYTES,
    STATE_Q,
    STATE_ROWS,
    STRIDE,
    SUMS,
    TILES,
    UNSEEN,
    WIDEST,
    add_values,
    finish_row,
    score,
    soften,
    state_bytes,
)
from .descriptor import COUNTER, N_QUERY_BLOCKS, slots
from .jit import kernel
from .layout import KV_BLOCK, QUERY_BLOCK
from .memory import atomic_add, read_f32, read_i64, write_f32, write_i32, write_i64

FIELDS = (
    *("q", "q_stride", "out", "out_stride", "heads", "kv_heads", "head_dim", "window", "k_cache", "v_cache"),
    *("kv_half", "block_bytes", "scratch", "scratch_stride", "block_first", "block_count", "block_table", "positions"),
)
(Q, Q_STRIDE, OUT, OUT_STRIDE, HEADS, KV_HEADS, HEAD_DIM, WINDOW, K_CACHE, V_CACHE,
 KV_HALF, BLOCK_BYTES, SCRATCH, SCRATCH_STRIDE, BLOCK_FIRST, BLOCK_COUNT, BLOCK_TABLE, POSITIONS) = slots(
    FIELDS
)  # fmt: skip

_state_bytes = kernel(state_bytes)


def scratch_bytes(heads: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of scratch that a worker needs; a multiple of 64."""
    states = -(-QUERY_BLOCK * (heads // kv_heads) // STATE_ROWS)
    return PLACES + states * state_bytes(head_dim)


@kernel
def _tile_rows(rows: int) -> int:
    """Rows of the tiles of a state of `rows`: the narrowest that holds all, else the widest."""
    width = WIDEST
    for candidate in TILES:
        if rows <= candidate:
            width = candidate
    return width


@kernel
def _open_state(d: Any, state: int, rows: int, query_block: int, kv_head: int, first_row: int) -> None:
    """Pack q by tiles, set the visible ranges, and clear sums and accumulators."""
    head_dim, window, shared = d[HEAD_DIM], d[WINDOW], d[HEADS] // d[KV_HEADS]
    first_token = read_i64(d[BLOCK_FIRST] + 8 * query_block)
    width = _tile_rows(rows)
    for at in range(state, state + _state_bytes(head_dim), 4):
        write_f32(at, 0.0)
    for row in range(rows):
        token = first_token + (first_row + row) // shared
        position = read_i64(d[POSITIONS] + 8 * token)
        write_f32(state + MAXIMA + 4 * row, UNSEEN)
        write_i32(state + FIRST + 4 * row, max(0, position - window + 1) if window > 0 else 0)
        write_i32(state + LAST + 4 * row, position)
        head = kv_head * shared + (first_row + row) % shared
        q = d[Q] + token * d[Q_STRIDE] + head * head_dim * 4
        target = state + STATE_Q + (row - row % width) * head_dim * 4 + row % width * 4
        for element in range(head_dim):
            write_f32(target + element * width * 4, read_f32(q + 4 * element))


@kernel
def _close_state(d: Any, state: int, rows: int, query_block: int, kv_head: int, first_row: int) -> None:
    """Divide by the sums and write the rows' outputs."""
    head_dim, shared = d[HEAD_DIM], d[HEADS] // d[KV_HEADS]
    first_token = read_i64(d[BLOCK_FIRST] + 8 * query_block)
    width, chunks = _tile_rows(rows), (head_dim + 15) // 16
    accumulators = state + STATE_Q + STATE_ROWS * 4 * head_dim
    for row in range(rows):
        token = first_token + (first_row + row) // shared
        head = kv_head * shared + (first_row + row) % shared
        out = d[OUT] + token * d[OUT_STRIDE] + head * head_dim * 4
        source = accumulators + ((row - row % width) * chunks + row % width) * 64
        finish_row(source, 64 * width, state + SUMS + 64 * row, out, head_dim)


@kernel
def _attend_stride(d: Any, state: int, rows: int, places: int, block: int, blocks: int) -> None:
    """A state meets `blocks` KV blocks from `block` on, all in one stride."""
    head_dim, half, width = d[HEAD_DIM], d[KV_HALF], _tile_rows(rows)
    chunks = (head_dim + 15) // 16
    weights = state + block % STRIDE * KV_BLOCK * 4
    queries, accumulators = state + STATE_Q, state + STATE_Q + STATE_ROWS * 4 * head_dim
    for index in range(blocks):
        for row in range(0, rows, width):
            target = weights + row * ROW_BYTES + index * KV_BLOCK * 4
            q = queries + row * head_dim * 4
            score(q, places + PLACE * index, head_dim, width, half, target)
    soften(state, rows, weights, block * KV_BLOCK, blocks)
    for row in range(0, rows, width):
        target = accumulators + row * chunks * 64
        factors = state + FACTORS + 4 * row
        add_values(target, weights + row * ROW_BYTES, factors, places, blocks, head_dim, width, half)


@kernel
def _place_blocks(d: Any, places: int, table: int, kv_head: int, block: int, blocks: int, last: int) -> None:
    """Where `blocks` KV blocks from `block` on lie, for the head; last: the last position to read."""
    of_head = kv_head * (d[BLOCK_BYTES] // d[KV_HEADS])
    for number in range(block, block + blocks):
        entry = places + PLACE * (number - block)
        base = read_i64(table + 8 * number) * d[BLOCK_BYTES] + of_head
        later = read_i64(table + 8 * min(number + STRIDE, last // KV_BLOCK)) * d[BLOCK_BYTES] + of_head
        write_i64(entry, d[K_CACHE] + base)
        write_i64(entry + 8, d[V_CACHE] + base)
        write_i64(entry + 16, min(KV_BLOCK, last + 1 - number * KV_BLOCK))
        write_i64(entry + 24, d[K_CACHE] + later)
        write_i64(entry + 32, d[V_CACHE] + later)


@kernel
def _attend(d: Any, query_block: int, kv_head: int, scratch: int) -> None:
    """All rows of a query block that belong to a KV head."""
    tokens = read_i64(d[BLOCK_COUNT] + 8 * query_block)
    rows = tokens * (d[HEADS] // d[KV_HEADS])
    size, states = _state_bytes(d[HEAD_DIM]), scratch + PLACES
    for row in range(0, rows, STATE_ROWS):
        state = states + row // STATE_ROWS * size
        _open_state(d, state, min(STATE_ROWS, rows - row), query_block, kv_head, row)
    positions = d[POSITIONS] + 8 * read_i64(d[BLOCK_FIRST] + 8 * query_block)
    last = read_i64(positions + 8 * (tokens - 1))
    block = max(0, read_i64(positions) - d[WINDOW] + 1) // KV_BLOCK if d[WINDOW] > 0 else 0
    while block <= last // KV_BLOCK:
        blocks = min(last // KV_BLOCK + 1, (block // STRIDE + 1) * STRIDE) - block
        _place_blocks(d, scratch, read_i64(d[BLOCK_TABLE] + 8 * query_block), kv_head, block, blocks, last)
        for row in range(0, rows, STATE_ROWS):
            state = states + row // STATE_ROWS * size
            _attend_stride(d, state, min(STATE_ROWS, rows - row), scratch, block, blocks)
        block += blocks
    for row in range(0, rows, STATE_ROWS):
        state = states + row // STATE_ROWS * size
        _close_state(d, state, min(STATE_ROWS, rows - row), query_block, kv_head, row)


@kernel
def attention(d: Any, step: Any, worker: int) -> None:
    """out = softmax(q . k) v over the visible positions; q comes scaled. Items: query blocks x KV heads."""
    blocks = step[N_QUERY_BLOCKS]
    while True:
        item = atomic_add(d[COUNTER], 1)
        if item >= blocks * d[KV_HEADS]:
            break
        # head by head, so that the query blocks of a prompt find the head's keys and values in the cache
        _attend(d, item % blocks, item // blocks, d[SCRATCH] + worker * d[SCRATCH_STRIDE])
