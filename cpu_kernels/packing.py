"""Filling packed tiles from plain codes: the permutation of `layout`, once per matrix at load.

Arrays in, arrays out; rows and columns are already padded. `out` is uint8 [tiles, spans, span_bytes].
"""

import numpy as np
from numpy.typing import NDArray

from .jit import kernel
from .layout import GROUP, KINDS, ROWS, SPAN

Bytes = NDArray[np.uint8]


@kernel
def _interleave_nibbles(codes, header, out):  # type: ignore[no-untyped-def]
    for tile in range(out.shape[0]):
        for span in range(out.shape[1]):
            target = out[tile, span]
            for lane in range(16):
                row = codes[tile * 16 + lane]
                for pair in range(8):
                    column, at = span * 64 + 8 * pair, header + 64 * pair + 4 * lane
                    for b in range(4):
                        target[at + b] = row[column + b] | (row[column + 4 + b] << 4)


@kernel
def _interleave(codes, header, width, out):  # type: ignore[no-untyped-def]
    """`width` bytes per lane: 4 one-byte columns, or one column of 2 or 4 bytes."""
    steps = codes.shape[1] // width // out.shape[1]
    for tile in range(out.shape[0]):
        for span in range(out.shape[1]):
            target = out[tile, span]
            for lane in range(16):
                row = codes[tile * 16 + lane]
                for step in range(steps):
                    source, at = (span * steps + step) * width, header + (step * 16 + lane) * width
                    for b in range(width):
                        target[at + b] = row[source + b]


def pack_codes(
    kind: str, codes: Bytes, scales: NDArray[np.float16], minima: NDArray[np.float16] | None, out: Bytes
) -> None:
    """Pack unsigned codes [rows, columns] with float16 scales (and minima) [rows, columns / 32]."""
    header = 64 if minima is None else 128
    _headers(out[:, :, :64], scales)
    if minima is not None:
        _headers(out[:, :, 64:128], minima)
    if kind == "q8":
        _interleave(codes, header, 4, out)
    else:
        _interleave_nibbles(codes, header, out)


def _headers(out: Bytes, values: NDArray[np.float16]) -> None:
    tiles, spans = out.shape[:2]
    order = values.reshape(tiles, ROWS, spans, SPAN // GROUP).transpose(0, 2, 3, 1)
    out[...] = np.ascontiguousarray(order).reshape(tiles, spans, -1).view(np.uint8)


def pack_floats(kind: str, values: Bytes, out: Bytes) -> None:
    """Pack raw little-endian floats, uint8 [rows, columns * bytes per value]."""
    _interleave(values, 0, KINDS[kind].span_bytes // SPAN // ROWS, out)
