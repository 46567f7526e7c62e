"""From a checkpoint's blocks to the plain codes that tiles are packed from, some rows at a time."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .formats import FORMATS, Bytes, Floats

GROUP = 32


@dataclass(frozen=True, slots=True)
class Codes:
    """codes: unsigned, uint8 [rows, columns]; scales, minima: float16 [rows, columns / 32].

    The weight is scale * (code - offset), with the kind's offset (q8 128, q4 8), or scale * code + minimum (q4m).
    """

    codes: Bytes
    scales: NDArray[np.float16]
    minima: NDArray[np.float16] | None = None


def codes_of(name: str, raw: Bytes, columns: int) -> Codes:
    """Codes of rows in the format `name`; raw is uint8 [rows, bytes per row]. Whole groups of 32 only."""
    read = _EXACT.get(name)
    if read is not None:
        row = FORMATS[name]
        return read(raw.reshape(len(raw), columns // row.block, row.block_bytes))
    return quantise_rows(FORMATS[name].dequantise(raw))


def quantise_rows(values: Floats) -> Codes:
    """Round float rows to 8-bit codes in groups of 32, the largest magnitude at 127."""
    groups = values.reshape(len(values), -1, GROUP)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    inverse = np.divide(1, scales, out=np.zeros(scales.shape, np.float32), where=scales != 0, dtype=np.float32)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127) + 128
    return Codes(codes.astype(np.uint8).reshape(values.shape), scales)


def _half(field: Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(field).view(np.float16)[..., 0]


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles are the first half of a block, high nibbles the second."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _flat(codes: Bytes) -> Bytes:
    return codes.reshape(len(codes), -1)


def _q4_0(blocks: Bytes) -> Codes:
    return Codes(_flat(_nibbles(blocks[..., 2:])), _half(blocks[..., :2]))


def _q4_1(blocks: Bytes) -> Codes:
    return Codes(_flat(_nibbles(blocks[..., 4:])), _half(blocks[..., :2]), _half(blocks[..., 2:4]))


def _q5_0(blocks: Bytes) -> Codes:
    high = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    return Codes(_flat((_nibbles(blocks[..., 6:]) | (high << 4)) + (128 - 16)), _half(blocks[..., :2]))


def _q8_0(blocks: Bytes) -> Codes:
    return Codes(_flat(blocks[..., 2:] ^ 128), _half(blocks[..., :2]))


def _q4_k(blocks: Bytes) -> Codes:
    """Eight sub-blocks of 32; 6-bit scales and minima multiply d and dmin."""
    d, dmin = _half(blocks[..., :2]).astype(np.float32), _half(blocks[..., 2:4]).astype(np.float32)
    s = blocks[..., 4:16]
    low, high = s[..., :4], s[..., 4:8]
    scale = np.concatenate((low & 63, (s[..., 8:] & 15) | (low >> 6 << 4)), axis=-1)
    minimum = np.concatenate((high & 63, (s[..., 8:] >> 4) | (high >> 6 << 4)), axis=-1)
    codes = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    rows = len(blocks)
    return Codes(
        _flat(codes),
        (d[..., None] * scale).astype(np.float16).reshape(rows, -1),
        (-dmin[..., None] * minimum).astype(np.float16).reshape(rows, -1),
    )


_EXACT = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q8_0": _q8_0, "Q4_K": _q4_k}
