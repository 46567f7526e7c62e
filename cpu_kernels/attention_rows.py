"""The rows that attention works on in a worker's scratch, and what does not depend on the kind of the cache.

Scratch: the places of a stride's KV blocks; then, of a group of rows, scores [row][64 positions], float32, codes of
weights [row][64], int16, a line for each row to be folded, and numbers [row]; then all rows, ROW bytes each. A row
begins with its *part*, what one segment of the context adds up to: sums [16 lanes], a line with its maximum and more,
accumulators [head_dim]. Behind it are the query, as floats or as codes, and the *total* of the segments so far, laid
out like a part.
"""

from collections.abc import Callable, Iterable

from .features import host_tier
from .kv_layout import CHUNK
from .layout import KV_BLOCK
from .simd import Emit, Value, i64, micro_kernel

MAX_HEAD_DIM = 512
GROUP_ROWS, STRIDE = 16, 4  # rows that walk the context together, KV blocks that share a step of the running softmax
STRIDE_POSITIONS = STRIDE * KV_BLOCK
# For each KV block of a stride: addresses of keys and values, positions to read, the block's part a stride later, and
# what of such parts to ask for while the block is scored.
PLACE = 40
SCORES = 192  # behind the places
SCORES_ROW, CODES_ROW, LINE = STRIDE_POSITIONS * 4, STRIDE_POSITIONS * 2, 64
CODES = SCORES + GROUP_ROWS * SCORES_ROW
LINES = CODES + GROUP_ROWS * CODES_ROW
# By row of a group: what makes exponents of 2 of scores, running maxima, what scales the accumulators and what a
# stride adds, and what makes codes of weights.
SCALES, TOPS, OLD, NEW, INVERSE = (LINES + GROUP_ROWS * (LINE + 4 * number) for number in range(5))
ROWS = INVERSE + 4 * GROUP_ROWS
# In a part. Scores times QUERY_SCALE are exponents of 2; FIRST and LAST bound what the row sees (int32).
MAXIMUM, QUERY_SCALE, FIRST, LAST = range(64, 80, 4)
PART_HEAD = 128  # bytes before the accumulators
QUERY = PART_HEAD + 4 * MAX_HEAD_DIM
TOTAL = QUERY + 4 * MAX_HEAD_DIM
ROW = TOTAL + PART_HEAD + 4 * MAX_HEAD_DIM + 64  # an odd number of lines, so that rows spread over the cache's sets
LOG2_E = 1.4426950408889634
UNSEEN = -1e30  # the maximum of a row that has seen nothing; finite, so that differences of it are

# rows that the registers hold, each with two sums of scores
TILES = (8, 4, 1) if host_tier().registers >= 32 else (2, 1)
WIDEST = TILES[0]


def part_bytes(head_dim: Value | int) -> Value:
    """Bytes of a part: multiples of 64."""
    return PART_HEAD + (head_dim + CHUNK - 1) // CHUNK * 64


def for_each_tile(e: Emit, width: Value, kind: Value, kinds: Iterable[int], body: Callable[[int, int], None]) -> None:
    """Emit body(rows of a tile, kind) for each case and branch to the one that `width` and `kind` name."""
    for number in kinds:
        for rows in TILES:
            is_width = e.b.icmp_signed("==", width, e.const(rows))
            with e.b.if_then(e.b.and_(is_width, e.b.icmp_signed("==", kind, e.const(number)))):
                body(rows, number)


def ask_for_line(e: Emit, pointer: Value, index: Value) -> list[Value]:
    """Prefetch a line; nothing is carried on."""
    e.prefetch(pointer, e.b.shl(index, e.const(6)))
    return []


@micro_kernel()
def ask_for(e: Emit, address: Value, size: Value) -> None:
    """Prefetch `size` bytes, whole lines."""
    base = e.pointer(address)

    e.loop(e.b.lshr(size, e.const(6)), [], lambda i, _: ask_for_line(e, base, i))


def place_of(e: Emit, entry: Value, field: int) -> Value:
    """A field of a block's place: 0 keys, 1 values, 2 positions, 3 its part a stride later, 4 what to ask for."""
    return e.load(i64, entry, 8 * field, 8)


def later_part(e: Emit, places: Value, chunks: Value, index: Value, size: int) -> Value:
    """Where what to ask for begins while chunk `index` of a stride's values is added: `size` bytes a block, and a line.

    While blocks are scored, the parts of the first half of a stride later are asked for; here, those of the second.
    """
    half = e.b.lshr(e.b.add(chunks, e.const(1)), e.const(1))
    is_last = e.b.icmp_signed(">=", index, half)
    parts = [place_of(e, e.at(places, PLACE * block), 3) for block in (STRIDE // 2, STRIDE - 1)]
    step = e.b.select(is_last, e.b.sub(index, half), index)
    return e.at(e.pointer(e.b.select(is_last, parts[1], parts[0])), e.b.mul(step, e.const(STRIDE * size + LINE)))
