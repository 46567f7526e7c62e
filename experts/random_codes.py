"""Random codes in packed tiles, with scales that give the numbers a deviation: weights of any kind without a source."""

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels import reference
from ..cpu_kernels.layout import Codes

Bytes = NDArray[np.uint8]


def fill_codes(codes: Codes, tiles: Bytes, deviation: float, rng: np.random.Generator) -> None:
    """Fill tiles [tiles, units, unit_bytes] with any codes, of numbers around zero."""
    tiles[:] = rng.integers(0, 256, tiles.shape, np.uint8)
    numbers = np.array(codes.unsigned) - codes.offset
    scales = rng.uniform(0.5, 1.5, (*tiles.shape[:2], codes.minima_at // 2)).astype(np.float32)
    scales *= np.float32(deviation / (numbers.std() * _size_of_parts(codes)))
    tiles[:, :, : codes.minima_at] = _header(scales, codes)
    if codes.minima:
        levels = np.full_like(scales, -numbers.mean()) if codes.zeros else -scales * np.float32(numbers.mean())
        tiles[:, :, codes.minima_at : codes.parts_at] = _header(levels, codes)


def _size_of_parts(codes: Codes) -> float:
    """The root of the mean square of parts of which all are alike often."""
    if codes.parts is None:
        return 1.0
    least, most = codes.part_range
    return float(np.sqrt(np.mean(np.square(np.arange(least, most + 1)))))


def _header(values: NDArray[np.float32], codes: Codes) -> Bytes:
    bits: NDArray[np.generic] = reference.bfloat_bits(values) if codes.bfloat else values.astype(np.float16)
    return bits.view(np.uint8)
