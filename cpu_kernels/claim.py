"""How workers share out the items of an op.

The items are cut into a run for each worker. It takes those one after the other and then helps with the others' runs.
So from op to op a worker comes back to about the same columns or tokens, which lie in its caches: what another core
has just written takes longer to read, above all where the two share no cache. And it reads weights as one stream.
Which worker takes an item changes no result.
"""

from typing import Any

from .descriptor import COUNTER, RUN_BITS, WORKERS
from .jit import kernel
from .memory import atomic_add, atomic_load

_RUN_BITS = 3
RUNS = 1 << _RUN_BITS  # at most, of an op; more workers share them


def run_bits(workers: int) -> int:
    """log2 of the number of runs for so many workers: what `step[RUN_BITS]` holds."""
    return min(workers.bit_length() - 1, _RUN_BITS)


@kernel
def claim(d: Any, step: Any, worker: int, items: int) -> int:
    """An item 0 .. items - 1 that nobody has taken yet; -1 if there is none. `d[COUNTER]` addresses int64 [RUNS]."""
    bits = step[RUN_BITS]
    own = (worker << bits) // step[WORKERS]
    for i in range(1 << bits):
        run = (own + i) & ((1 << bits) - 1)
        first = items * run >> bits
        count = (items * (run + 1) >> bits) - first
        taken = d[COUNTER] + 8 * run
        if atomic_load(taken) < count:  # an addition would take the cache line from the others
            index: int = atomic_add(taken, 1)
            if index < count:
                return int(first + index)
    return -1
