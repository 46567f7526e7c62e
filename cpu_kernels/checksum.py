"""A checksum that is taken as fast as memory is read: for gigabytes that each start looks at."""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

LANES = 64  # words that are mixed side by side: enough to hide how long a multiplication takes
FACTOR = 0x9E3779B97F4A7C15  # odd, so a product tells apart what its factors do
_FACTOR, _HALF = np.uint64(FACTOR), np.uint64(32)


def checksum(memory: NDArray[np.uint8]) -> int:
    """64 bits over contiguous bytes, a multiple of 8: each lane of words is hashed for itself, then all lanes together.

    A change within a single word always changes it. Products carry upwards only, so each is folded down: else two
    changes of the highest bit in a lane would cancel. It tells damage, not forgery.
    """
    words = memory.view(np.uint64)
    words.flags.writeable = False  # one type of array, one kernel
    return int(_mix(words, np.zeros(LANES, np.uint64)))


@kernel
def _step(total, word):  # type: ignore[no-untyped-def]
    product = (total ^ word) * _FACTOR
    return product ^ product >> _HALF


@kernel
def _mix(words, lanes):  # type: ignore[no-untyped-def]
    whole = words.size // LANES
    for row in range(whole):
        for lane in range(LANES):
            lanes[lane] = _step(lanes[lane], words[row * LANES + lane])
    for lane in range(words.size - whole * LANES):
        lanes[lane] = _step(lanes[lane], words[whole * LANES + lane])
    total = np.uint64(words.size)
    for lane in range(LANES):
        total = _step(total, lanes[lane])
    return total
