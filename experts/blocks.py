"""Where the fields of GGUF's blocks lie: tables for the kernels that move codes and scales into packed tiles.

Octets of codes: a row for each eight columns, in order, with the first of the eight bytes that hold their bits and how
far above the lowest place these are. Parts, the small integers that a block's scale is multiplied by: a row for each,
as `cpu_kernels.headers.pack_sixes` reads it. Lists: the scale for each value of a byte.
"""

from collections.abc import Sequence

import numpy as np
from gguf import quants
from numpy.typing import NDArray

from ..cpu_kernels.packing import Table

_Row = tuple[int, ...]
_NONE = (0, 0, 0)


def octets(at: int, width: int, shifts: Sequence[int], size: int) -> Table:
    """`size` bytes from `at` in runs of `width`: a run holds as many columns for each of the shifts, one by one."""
    runs = range(at, at + size, width)
    return _table([(first + byte, shift) for first in runs for shift in shifts for byte in range(0, width, 8)])


def nibbles(at: int, width: int, size: int) -> Table:
    """Octets of 4 bits: in each run of `width` bytes first the low ones."""
    return octets(at, width, (0, 4), size)


def pairs(at: int, width: int, size: int) -> Table:
    """Octets of 2 bits: in each run of `width` bytes first the lowest ones."""
    return octets(at, width, (0, 2, 4, 6), size)


def trit_octets() -> Table:
    """TQ1_0: 32 and 16 bytes of five digits each; in the place of a shift the power of 3 that finds one."""
    powers = [3**digit for digit in range(5)]
    first = [(byte, power) for power in powers for byte in range(0, 32, 8)]
    return _table([*first, *((byte, power) for power in powers for byte in (32, 40))])


def k_parts() -> Table:
    """Q4_K, Q5_K: of each span two scales and two minima. Those of the first two spans are whole bytes without their
    upper two bits, which are those of the others; these have their scales in low nibbles, their minima in high ones."""
    whole = [(byte, 0, 63, *_NONE) for byte in range(4, 12)]
    split = [(12 + i, 4 * side, 15, 4 + i + 4 * side, 6, 3) for side in (0, 1) for i in range(4)]
    return _table([of[i] for of in (whole, split) for i in (0, 1, 4, 5, 2, 3, 6, 7)])


def q3_k_parts() -> Table:
    """Q3_K: 16 nibbles, the low ones first, then 4 x 4 pairs of bits."""
    return _table([(96 + i % 8, i // 8 * 4, 15, 104 + i % 4, i // 4 * 2, 3) for i in range(16)])


def mxfp4_scales() -> NDArray[np.uint16]:
    """Powers of two as bfloat16, halved as the values are doubled."""
    scales = quants.MXFP4.e8m0_to_fp32_half(np.arange(256, dtype=np.uint8))
    return (scales.view(np.uint32) >> 16).astype(np.uint16)


def nvfp4_scales() -> NDArray[np.uint16]:
    """8-bit floats as float16, halved as the values are doubled."""
    scales = quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8))
    return scales.astype(np.float16).view(np.uint16)


def _table(rows: Sequence[_Row]) -> Table:
    return np.array(rows, np.int64)
