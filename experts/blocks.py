"""Where the fields of GGUF's blocks lie: tables for the kernels that move codes and scales into packed tiles.

Octets of codes: a row for each eight columns, in order, with the first of the eight bytes that hold their bits and how
far above the lowest place these are. Parts, the small integers that a block's scale is multiplied by: a row for each
group of columns, as `cpu_kernels.headers.pack_products` reads it. Lists: the scale for each value of a byte.
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


def k_scales() -> Table:
    """Q4_K, Q5_K: eight of 6 bits; four whole, of four the low nibbles and the upper two bits."""
    return _table(
        [*((4 + i, 0, 63, *_NONE, 0) for i in range(4)), *((12 + i, 0, 15, 4 + i, 6, 3, 0) for i in range(4))]
    )


def k_minima() -> Table:
    """Q4_K, Q5_K: as the scales, four bytes later and in the high nibbles."""
    return _table(
        [*((8 + i, 0, 63, *_NONE, 0) for i in range(4)), *((12 + i, 4, 15, 8 + i, 6, 3, 0) for i in range(4))]
    )


def q2_k_parts(shift: int) -> Table:
    """Q2_K: 16 nibbles, the scales below the minima."""
    return _table([(i, shift, 15, *_NONE, 0) for i in range(16)])


def q3_k_scales() -> Table:
    """Q3_K: 16 nibbles, the low ones first, then 4 x 4 pairs of bits; 32 above their value."""
    return _table([(96 + i % 8, i // 8 * 4, 15, 104 + i % 4, i // 4 * 2, 3, 32) for i in range(16)])


def q6_k_scales() -> Table:
    """Q6_K: 16 signed bytes."""
    return _table([(192 + i, 0, 255, *_NONE, 0) for i in range(16)])


def iq4_xs_scales() -> Table:
    """IQ4_XS: 8 nibbles, low and high by turns, and 8 pairs of bits; 32 above their value."""
    return _table([(4 + i // 2, i % 2 * 4, 15, 2 + i // 4, i % 4 * 2, 3, 32) for i in range(8)])


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
