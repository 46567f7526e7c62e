"""The small integers of scales of two levels in plain NumPy: put into the units of packed tiles."""

import numpy as np
from isotherm.cpu_kernels.layout import ROWS, Codes
from numpy.typing import NDArray

Integers = NDArray[np.integer]


def put_parts(codes: Codes, tiles: NDArray[np.uint8], scales: Integers, minima: Integers | None = None) -> None:
    """Those of scales (and minima), [rows, one for `codes.columns` columns], into tiles [tiles, units, unit_bytes].

    Where columns end they are zero, where rows end their bits are.
    """
    units = tiles.shape[1]
    each = 64 * codes.spans // codes.columns

    raised = 32 if codes.parts == "split" or (codes.parts == "sixes" and minima is None) else 0

    def by_unit(parts: Integers) -> Integers:
        """[tiles, units, scales of a unit, 16 rows]"""
        whole = np.zeros((len(tiles) * ROWS, units * each), np.int64)
        whole[: parts.shape[0], : parts.shape[1]] = parts
        whole[parts.shape[0] :] = -raised
        return whole.reshape(len(tiles), ROWS, units, each).transpose(0, 2, 3, 1)

    first = by_unit(scales)
    if codes.parts == "bytes":
        raw = first.astype(np.int8)
    elif codes.parts == "nibbles":
        assert minima is not None
        raw = first | by_unit(minima) << 4
    elif codes.parts == "sixes":
        raw = _sixes(first + raised if minima is None else _by_span(first, by_unit(minima)))
    else:
        first = first + raised
        pairs = sum((first[:, :, i::4] >> 4) << 2 * i for i in range(4))
        raw = np.concatenate([pairs, (first[:, :, ::2] & 15) | (first[:, :, 1::2] & 15) << 4], axis=2)
    content = np.ascontiguousarray(raw.astype(np.uint8) if raw.dtype != np.int8 else raw).view(np.uint8)
    content = content.reshape(len(tiles), units, -1)
    tiles[:, :, codes.parts_at : codes.parts_at + content.shape[2]] = content


def _by_span(scales: Integers, minima: Integers) -> Integers:
    """Two of each by turns."""
    shape = (*scales.shape[:2], 4, 2, ROWS)
    return np.concatenate([scales.reshape(shape), minima.reshape(shape)], axis=3).reshape(*scales.shape[:2], 16, ROWS)


def _sixes(parts: Integers) -> NDArray[np.uint8]:
    """Sixteen parts -> 4 spans x 48 bytes."""
    a, b, c, d = np.moveaxis(parts.reshape(*parts.shape[:2], 4, 4, ROWS), 3, 0)
    words = np.ascontiguousarray(a | b << 6 | (d & 15) << 12).astype("<u2").view(np.uint8)
    return np.concatenate([words, (c | (d >> 4) << 6).astype(np.uint8)], axis=3)
