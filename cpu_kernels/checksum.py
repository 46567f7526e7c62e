"""A checksum that is taken as fast as memory is read: for gigabytes that each start looks at."""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel

LANES = 64  # words that are mixed side by side: enough to hide how long a multiplication takes
FACTOR = 0x9E3779B97F4A7C15  # odd, so a product tells apart what its factors do
_FACTOR = np.uint64(FACTOR)


def checksum(memory: NDArray[np.uint8]) -> int:
    """64 bits over contiguous bytes, a multiple of 8: each lane of words is hashed for itself, then all lanes together.

    A change within a single word always changes it, any other change but for one in 2^64. Nobody can be kept from
    making bytes that fit a sum: it tells damage, not forgery.
    """
    words = memory.view(np.uint64)
    words.flags.writeable = False  # one type of array, one kernel
    return int(_mix(words, np.zeros(LANES, np.uint64)))


@kernel
def _mix(words, lanes):  # type: ignore[no-untyped-def]
    whole = words.size // LANES
    for row in range(whole):
        for lane in range(LANES):
            lanes[lane] = (lanes[lane] ^ words[row * LANES + lane]) * _FACTOR
    for lane in range(words.size - whole * LANES):
        lanes[lane] = (lanes[lane] ^ words[whole * LANES + lane]) * _FACTOR
    total = np.uint64(words.size)
    for lane in range(LANES):
        total = (total ^ lanes[lane]) * _FACTOR
        total ^= total >> np.uint64(32)
    return total
