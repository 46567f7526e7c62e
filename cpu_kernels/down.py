"""The second product of an expert, and the sum of a token's experts.

With few pairs of tokens and experts a worker takes some rows of *all* experts, so that it can add a token's outputs up
by itself: they never leave its cache, and nobody waits in between. With many, the pairs of an expert stay together,
whose records then are read from cache, and `combine` adds up what this op has left in memory.
"""

from typing import Any

from .claim import claim
from .combine import add_choices, gate_of
from .descriptor import slots
from .jit import call_product, kernel
from .memory import read_i64, row_number, write_i64
from .tiles import BLOCK

FEW_PAIRS = 256  # as many can be added up at once
MOST_TILES = 32  # in a chunk: at a jump memory slows down; one core read 21 GB/s at 4, 26 at 16, 29 at 32
_RESULTS = 64  # in the scratch, behind int64[8] addresses of records: float32 [pairs][rows of a chunk]
SCRATCH_BYTES = _RESULTS + FEW_PAIRS * MOST_TILES * 64

FIELDS = (
    *("x", "x_stride", "product", "table", "tile_bytes", "start", "tiles", "spans", "chunk", "out", "out_stride"),
    *("offsets", "active", "num_active", "top_k", "scratch", "scratch_stride"),
    *("sum", "sum_stride", "n", "position", "weights", "gate", "gate_stride", "few"),
    *("count_slot", "rows"),
)
(
    X, X_STRIDE, PRODUCT, TABLE, TILE_BYTES, START, TILES, SPANS, CHUNK, OUT, OUT_STRIDE,
    OFFSETS, ACTIVE, NUM_ACTIVE, TOP_K, SCRATCH, SCRATCH_STRIDE,
    SUM, SUM_STRIDE, N, POSITION, WEIGHTS, GATE, GATE_STRIDE, FEW,
    COUNT_SLOT, ROWS,
) = slots(FIELDS)  # fmt: skip


@kernel
def _multiply(d: Any, index: int, first: int, last: int, rows: int, out: int, stride: int) -> None:
    """Tiles first .. last - 1 of the expert at `index` of the active ones, for all its pairs.

    rows: room for addresses of records; out: of the results of place 0 and tile `first`, `stride` bytes a place.
    """
    expert = read_i64(d[ACTIVE] + 8 * index)
    start, end = read_i64(d[OFFSETS] + 8 * expert), read_i64(d[OFFSETS] + 8 * (expert + 1))
    w = read_i64(d[TABLE] + 8 * expert)
    while start < end:
        block = min(BLOCK, end - start)
        for t in range(block):
            write_i64(rows + 8 * t, d[X] + (start + t) * d[X_STRIDE])
        for tile in range(first, last):
            target = out + start * stride + (tile - first) * 64
            call_product(d[PRODUCT], block, w + tile * d[TILE_BYTES], d[SPANS], rows, target, stride)
        start += block


@kernel
def _add_up(d: Any, count: int, first: int, last: int, outs: int, stride: int) -> None:
    """The columns of tiles first .. last - 1 of every token's sum."""
    columns = min(16 * (last - first), d[N] - 16 * first)
    for token in range(count if columns > 0 else 0):
        x = d[SUM] + row_number(d[ROWS], token) * d[SUM_STRIDE] + 64 * first
        gate = gate_of(d[GATE], d[GATE_STRIDE], token)
        add_choices(x, columns, outs, stride, d[TOP_K], d[POSITION], d[WEIGHTS], gate, token)


@kernel
def expert_down(d: Any, step: Any, worker: int) -> None:
    """sum[t] += sigmoid(gate[t]) * sum over its experts of weight * D_e x, where the step has at most `few` pairs.

    Else row s of out = D_e x[s] for the s-th pair in expert order. x: records of the pairs in expert order.
    rows: 0, or address of the numbers of the tokens' rows of `sum`.
    Items: chunks of tiles; with many pairs, of every active expert.
    """
    chunks = (d[TILES] - d[START] + d[CHUNK] - 1) // d[CHUNK]
    active, count = read_i64(d[NUM_ACTIVE]), step[d[COUNT_SLOT]]
    few = count * d[TOP_K] <= d[FEW]
    rows = d[SCRATCH] + worker * d[SCRATCH_STRIDE]
    results, stride = rows + _RESULTS, d[CHUNK] * 64
    while True:
        item = claim(d, step, worker, chunks if few else chunks * active)
        if item < 0:
            break
        first = d[START] + item % chunks * d[CHUNK]
        last = min(first + d[CHUNK], d[TILES])
        if not few:
            _multiply(d, item // chunks, first, last, rows, d[OUT] + 64 * first, d[OUT_STRIDE])
            continue
        for index in range(active):
            _multiply(d, index, first, last, rows, results, stride)
        _add_up(d, count, first, last, results, stride)
