"""Paged causal attention with grouped query heads, over the cache that `rope` fills.

A query block is up to QUERY_BLOCK consecutive tokens of one sequence. Its rows for a KV head (token by token, and head
by head in a token) walk the context in groups that find keys and values in the first cache, and the rows of a tile of
a group share each vector of them.

The context is walked in strides of 4 KV blocks that begin at multiples of 64 positions: scores, a running softmax,
values. What a row does not see has weight 0 exactly. Each SEGMENT of the context is softened by itself, and the
parts are merged in order. So a row's bits depend on its own position only: not on the rows beside it, nor on whether
one worker walks all segments or several share them.

Items: pieces x KV heads. A piece is a query block with one segment, or with all of them. Of a block that is split, who
finishes last merges the parts that lie in `partials` then.
"""

from typing import Any

from .attention_codes import add_codes, open_codes, score_codes, soften_codes
from .attention_floats import add_floats, open_floats, score_floats, soften_floats
from .attention_parts import finish_bfloats, finish_codes, finish_row, merge_part, open_part
from .attention_rows import (
    FIRST,
    GROUP_ROWS,
    LAST,
    MAXIMUM,
    PLACE,
    QUERY_SCALE,
    ROW,
    ROWS,
    SCALES,
    SCORES,
    SCORES_ROW,
    STRIDE,
    STRIDE_POSITIONS,
    TILES,
    TOPS,
    TOTAL,
    UNSEEN,
    WIDEST,
    ask_for,
    part_bytes,
)
from .claim import claim
from .descriptor import N_PIECES, WORKERS, slots
from .jit import kernel
from .kv_layout import INT8, INT16
from .layout import BF16, KV_BLOCK, Q8, QUERY_BLOCK, SEGMENT, SPAN
from .memory import atomic_add, atomic_store, read_f32, read_i64, write_f32, write_i32, write_i64

FIELDS = (
    *("q", "q_stride", "out", "out_stride", "heads", "kv_heads", "head_dim", "window", "k_cache", "v_cache"),
    *("kv_kind", "block_bytes", "head_bytes", "scratch", "scratch_stride", "block_first", "block_count"),
    *("block_table", "positions", "piece_block", "piece_segment", "block_partial", "partials", "finished"),
    *("out_record", "wanted"),
)
(Q, Q_STRIDE, OUT, OUT_STRIDE, HEADS, KV_HEADS, HEAD_DIM, WINDOW, K_CACHE, V_CACHE,
 KV_KIND, BLOCK_BYTES, HEAD_BYTES, SCRATCH, SCRATCH_STRIDE, BLOCK_FIRST, BLOCK_COUNT,
 BLOCK_TABLE, POSITIONS, PIECE_BLOCK, PIECE_SEGMENT, BLOCK_PARTIAL, PARTIALS, FINISHED,
 OUT_RECORD, WANTED) = slots(
    FIELDS
)  # fmt: skip
ALL_SEGMENTS = -1

_part_bytes = kernel(part_bytes)


def scratch_bytes(heads: int, kv_heads: int) -> int:
    """Bytes of scratch that a worker needs; a multiple of 64."""
    return ROWS + -(-QUERY_BLOCK * (heads // kv_heads) // WIDEST) * WIDEST * ROW


@kernel
def _tile_rows(rows: int) -> int:
    """Rows of the next tile where `rows` are left: the narrowest that holds all, else the widest."""
    width = WIDEST
    for candidate in TILES:
        if rows <= candidate:
            width = candidate
    return width


@kernel
def _rows_of(d: Any, query_block: int) -> int:
    rows: int = read_i64(d[BLOCK_COUNT] + 8 * query_block) * (d[HEADS] // d[KV_HEADS])
    return rows


@kernel
def _position(d: Any, query_block: int, token: int) -> int:
    position: int = read_i64(d[POSITIONS] + 8 * (read_i64(d[BLOCK_FIRST] + 8 * query_block) + token))
    return position


@kernel
def _first_seen(d: Any, position: int) -> int:
    return max(0, position - d[WINDOW] + 1) if d[WINDOW] > 0 else 0


@kernel
def _open_rows(d: Any, query_block: int, kv_head: int, scratch: int) -> None:
    """Take the queries and what each row may see."""
    shared, head_dim, record = d[HEADS] // d[KV_HEADS], d[HEAD_DIM], scratch + ROWS
    for token in range(read_i64(d[BLOCK_COUNT] + 8 * query_block)):
        position = _position(d, query_block, token)
        row = read_i64(d[BLOCK_FIRST] + 8 * query_block) + token
        q = d[Q] + row * d[Q_STRIDE] + kv_head * shared * head_dim * 4
        for _ in range(shared):
            write_i32(record + FIRST, _first_seen(d, position))
            write_i32(record + LAST, position)
            if d[KV_KIND] >= INT16:
                open_codes(q, record, head_dim)
            else:
                open_floats(q, record, head_dim)
            q += head_dim * 4
            record += ROW


@kernel
def _place_blocks(d: Any, places: int, table: int, kv_head: int, block: int, last: int, coming: int) -> None:
    """Where the KV blocks of the stride from `block` on lie, for the head.

    last: the last position to read; coming: the last that this worker will read soon.
    """
    of_head, last_block = kv_head * d[HEAD_BYTES], last // KV_BLOCK
    for number in range(block, block + STRIDE):
        entry = places + PLACE * (number - block)
        base = read_i64(table + 8 * min(number, last_block)) * d[BLOCK_BYTES] + of_head
        later = read_i64(table + 8 * min(number + STRIDE, coming // KV_BLOCK)) * d[BLOCK_BYTES] + of_head
        write_i64(entry, d[K_CACHE] + base)
        write_i64(entry + 8, d[V_CACHE] + base)
        write_i64(entry + 16, min(KV_BLOCK, last + 1 - number * KV_BLOCK))
        write_i64(entry + 24, d[K_CACHE] + later)
    # a stride is asked for in the order of its addresses, as the memory likes it
    for index in range(STRIDE):
        part = read_i64(places + PLACE * (index // 2) + 24)
        write_i64(places + PLACE * index + 32, part + index % 2 * (d[V_CACHE] - d[K_CACHE]))


@kernel
def _attend_floats(d: Any, scratch: int, first: int, rows: int, block: int, blocks: int, whole: int) -> None:
    """A group of rows from address `first` on meets the `blocks` KV blocks of a stride from `block` on."""
    kind, chunks = d[KV_KIND], (d[HEAD_DIM] + 15) // 16
    for index in range(blocks):
        row = 0
        while row < rows:
            width, target = _tile_rows(rows - row), scratch + SCORES + row * SCORES_ROW + index * KV_BLOCK * 4
            score_floats(first + row * ROW, scratch + PLACE * index, target, chunks, width, kind)
            row += width
    soften_floats(first, scratch, rows, block * KV_BLOCK, whole)
    row = 0
    while row < rows:
        width = _tile_rows(rows - row)
        add_floats(first + row * ROW, row, scratch, blocks, chunks, width, kind)
        row += width


@kernel
def _attend_codes(d: Any, scratch: int, first: int, rows: int, block: int, blocks: int, whole: int) -> None:
    """The same in a cache of codes."""
    kind, chunks = d[KV_KIND], (d[HEAD_DIM] + 15) // 16
    scales_at = chunks * 16 * KV_BLOCK * (1 if kind == INT8 else 2)
    for index in range(blocks):
        row = 0
        while row < rows:
            width, target = _tile_rows(rows - row), scratch + SCORES + row * SCORES_ROW + index * KV_BLOCK * 4
            score_codes(first + row * ROW, scratch + PLACE * index, target, chunks, width, kind)
            row += width
    soften_codes(first, scratch, rows, scales_at, block * KV_BLOCK, whole)
    row = 0
    while row < rows:
        width = _tile_rows(rows - row)
        add_codes(first + row * ROW, row, scratch, blocks, chunks, width, kind)
        row += width


@kernel
def _ask_for_stride(d: Any, table: int, kv_head: int, block: int, last: int) -> None:
    """Prefetch the stride from `block` on: scores alone have too few loads under way to hide the memory's latency."""
    for number in range(block, min(block + STRIDE, last // KV_BLOCK + 1)):
        part = read_i64(table + 8 * number) * d[BLOCK_BYTES] + kv_head * d[HEAD_BYTES]
        ask_for(d[K_CACHE] + part, 2 * (d[V_CACHE] - d[K_CACHE]))


@kernel
def _open_group(scratch: int, first: int, rows: int, chunks: int) -> None:
    """A group of rows from address `first` on has seen nothing yet. Its softmax works on numbers side by side."""
    for row in range(rows):
        record, number = first + row * ROW, scratch + 4 * row
        open_part(record, chunks)
        write_f32(number + TOPS, UNSEEN)
        write_f32(number + SCALES, read_f32(record + QUERY_SCALE))


@kernel
def _close_group(scratch: int, first: int, rows: int) -> None:
    for row in range(rows):
        write_f32(first + row * ROW + MAXIMUM, read_f32(scratch + TOPS + 4 * row))


@kernel
def _attend_segment(
    d: Any, query_block: int, rows: int, kv_head: int, segment: int, scratch: int, follows: bool, goes_on: bool
) -> None:
    """The parts of all rows over what they see of a segment, group by group.

    follows, goes_on: whether this worker had the segment before, and takes the next one too.
    """
    shared, chunks = d[HEADS] // d[KV_HEADS], (d[HEAD_DIM] + 15) // 16
    table = read_i64(d[BLOCK_TABLE] + 8 * query_block)
    oldest = max(_first_seen(d, _position(d, query_block, 0)), segment * SEGMENT)
    end = min(_position(d, query_block, rows // shared - 1), (segment + 1) * SEGMENT - 1)
    if not follows:
        _ask_for_stride(d, table, kv_head, oldest // STRIDE_POSITIONS * STRIDE, end)
    for row in range(0, rows, GROUP_ROWS):
        first, count = scratch + ROWS + row * ROW, min(GROUP_ROWS, rows - row)
        _open_group(scratch, first, count, chunks)
        oldest = _position(d, query_block, row // shared)
        newest = _position(d, query_block, (row + count - 1) // shared)
        last = min(newest, (segment + 1) * SEGMENT - 1)
        begin = max(_first_seen(d, oldest), segment * SEGMENT) // STRIDE_POSITIONS * STRIDE_POSITIONS
        for start in range(begin, last + 1, STRIDE_POSITIONS):
            block, end = start // KV_BLOCK, start + STRIDE_POSITIONS
            _place_blocks(d, scratch, table, kv_head, block, last, newest if goes_on else last)
            blocks = min(STRIDE, last // KV_BLOCK + 1 - block)
            whole = 1 if oldest >= end - 1 and _first_seen(d, newest) <= start else 0
            if d[KV_KIND] >= INT16:
                _attend_codes(d, scratch, first, count, block, blocks, whole)
            else:
                _attend_floats(d, scratch, first, count, block, blocks, whole)
        _close_group(scratch, first, count)


@kernel
def _close_row(d: Any, part: int, out: int, head: int) -> None:
    """The output of a head of the token whose outputs lie at `out`."""
    head_dim = d[HEAD_DIM]
    spans = head_dim // SPAN
    if d[OUT_RECORD] == Q8:
        finish_codes(part, out, head * spans, spans, d[HEADS] * head_dim)
    elif d[OUT_RECORD] == BF16:
        finish_bfloats(part, out, head * spans, spans)
    else:
        finish_row(part, out + head * head_dim * 4, head_dim)


@kernel
def _close_rows(d: Any, query_block: int, kv_head: int, scratch: int, at: int) -> None:
    """Divide what lies `at` in the rows, a part or a total, by its sum: the rows' outputs."""
    shared, record = d[HEADS] // d[KV_HEADS], scratch + ROWS + at
    for token in range(read_i64(d[BLOCK_COUNT] + 8 * query_block)):
        row = read_i64(d[BLOCK_FIRST] + 8 * query_block) + token
        for each in range(shared):
            _close_row(d, record, d[OUT] + row * d[OUT_STRIDE], kv_head * shared + each)
            record += ROW


@kernel
def _attend_all(d: Any, query_block: int, rows: int, kv_head: int, scratch: int) -> None:
    """All segments of a query block, one after the other."""
    chunks = (d[HEAD_DIM] + 15) // 16
    last = _position(d, query_block, read_i64(d[BLOCK_COUNT] + 8 * query_block) - 1)
    first = _first_seen(d, _position(d, query_block, 0)) // SEGMENT
    if first == last // SEGMENT:  # merging with nothing would change no bit
        _attend_segment(d, query_block, rows, kv_head, first, scratch, False, False)
        _close_rows(d, query_block, kv_head, scratch, 0)
        return
    for row in range(rows):
        open_part(scratch + ROWS + row * ROW + TOTAL, chunks)
    for segment in range(first, last // SEGMENT + 1):
        _attend_segment(d, query_block, rows, kv_head, segment, scratch, segment > first, True)
        for row in range(rows):
            record = scratch + ROWS + row * ROW
            merge_part(record + TOTAL, record, chunks)
    _close_rows(d, query_block, kv_head, scratch, TOTAL)


@kernel
def _part_of(d: Any, query_block: int, rows: int, kv_head: int, segment: int) -> int:
    """Where the first row's part of a segment lies; those of the other rows follow."""
    before = read_i64(d[BLOCK_PARTIAL] + 8 * query_block) * d[HEADS] + (segment * d[KV_HEADS] + kv_head) * rows
    address: int = d[PARTIALS] + before * _part_bytes(d[HEAD_DIM])
    return address


@kernel
def _attend_one(
    d: Any, query_block: int, rows: int, kv_head: int, segment: int, scratch: int, follows: bool, goes_on: bool
) -> None:
    """One segment of a query block, and all that remains if the others are done."""
    chunks, size = (d[HEAD_DIM] + 15) // 16, _part_bytes(d[HEAD_DIM])
    _attend_segment(d, query_block, rows, kv_head, segment, scratch, follows, goes_on)
    part = _part_of(d, query_block, rows, kv_head, segment)
    for row in range(rows):
        open_part(part + row * size, chunks)
        merge_part(part + row * size, scratch + ROWS + row * ROW, chunks)
    segments = _position(d, query_block, read_i64(d[BLOCK_COUNT] + 8 * query_block) - 1) // SEGMENT + 1
    finished = d[FINISHED] + 8 * (query_block * d[KV_HEADS] + kv_head)
    if atomic_add(finished, 1) < segments - 1:
        return
    atomic_store(finished, 0)
    for row in range(rows):
        open_part(scratch + ROWS + row * ROW + TOTAL, chunks)
    for each in range(segments):
        part = _part_of(d, query_block, rows, kv_head, each)
        for row in range(rows):
            merge_part(scratch + ROWS + row * ROW + TOTAL, part + row * size, chunks)
    _close_rows(d, query_block, kv_head, scratch, TOTAL)


@kernel
def attention(d: Any, step: Any, worker: int) -> None:
    """out = softmax(q . k) v over the visible positions; q comes scaled.

    piece_block, piece_segment: per piece its query block and segment (or ALL_SEGMENTS); of a query block that is split
    there is one for every segment up to its last position. block_partial: per query block that is split, how many
    (token, segment) pairs lie before its parts. finished: zeros, one for each query block and KV head. out_record: the
    number of the outputs' form in RECORDS; all but plain rows ask for heads of whole spans. wanted: 0, or address of
    an int64 for each query block, 0 of those to leave out.
    """
    pieces = step[N_PIECES]
    scratch, before = d[SCRATCH] + worker * d[SCRATCH_STRIDE], -1
    while True:
        item = claim(d, step, worker, pieces * d[KV_HEADS])
        if item < 0:
            break
        # head by head, so that the query blocks of a prompt find the head's keys and values in the cache
        piece, kv_head = item % pieces, item // pieces
        query_block = read_i64(d[PIECE_BLOCK] + 8 * piece)
        if d[WANTED] != 0 and read_i64(d[WANTED] + 8 * query_block) == 0:
            continue
        segment = read_i64(d[PIECE_SEGMENT] + 8 * piece)
        rows = _rows_of(d, query_block)
        _open_rows(d, query_block, kv_head, scratch)
        if segment == ALL_SEGMENTS:
            _attend_all(d, query_block, rows, kv_head, scratch)
        else:
            # mostly a worker's items follow each other, unless it has few of them
            goes_on = pieces * d[KV_HEADS] > 2 * step[WORKERS]
            follows = goes_on and segment > 0 and item == before + 1
            _attend_one(d, query_block, rows, kv_head, segment, scratch, follows, goes_on)
        before = item
