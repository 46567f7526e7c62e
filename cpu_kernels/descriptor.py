"""How an op of a recorded program is described: one row of int64, read by the op's kernel.

A row: the address of the kernel, whether all workers meet after it, the address of its work counters (`claim`), then
the op's own fields. A field is an address, a count, a stride in bytes, or the bits of a float64. Each module lists its
FIELDS. What changes from step to step is in the `step` array: counts, by the slots below.
"""

import struct

ENTRY, BARRIER, COUNTER, FIRST = 0, 1, 2, 3
WIDTH = 32  # int64 per row

# Slots of `step`. The team fills in WORKERS and RUN_BITS. N_LOGITS: tokens that the last layer is run for; N_HEAD: the
# first of them, which the head is run for.
N_TOKENS, N_LOGITS, N_PIECES, WORKERS, RUN_BITS, N_HEAD = 0, 1, 2, 3, 4, 5
STEP_SLOTS = 8


def slots(fields: tuple[str, ...]) -> range:
    """Column numbers of an op's fields."""
    if FIRST + len(fields) > WIDTH:
        raise ValueError(f"{len(fields)} fields do not fit a row of {WIDTH}")
    return range(FIRST, FIRST + len(fields))


def bits_of(value: float) -> int:
    """A float64 as the int64 with the same bits."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
