"""Blocks that rows of quantised safetensors are put into when they are read: codes together with their scale.

Eights (FP8), 68 bytes for 64 columns: a float32 scale, then 8-bit floats (E4M3). Columns are filled up with zeros.
Integers, for 32 columns: a scale in 16 bits, float16 or bfloat16; where there are zero points, the negated one in the
same type; then the codes without sign, a byte each or, of 4 bits, columns 0-15 in the low nibbles and 16-31 in the high
ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.layout import E4M3, GROUP, SPAN

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Words = NDArray[np.uint16]

EIGHTS_BYTES = 4 + SPAN
_LARGEST = 0x7E  # code of the largest number, 448


def eights(codes: Bytes, scales: Floats) -> Bytes:
    """codes [rows, columns], scales [rows, spans] -> uint8 [rows, spans * 68]."""
    rows, spans = scales.shape
    blocks = np.zeros((rows, spans, EIGHTS_BYTES), np.uint8)
    blocks[:, :, :4] = np.ascontiguousarray(scales, "<f4").view(np.uint8).reshape(rows, spans, 4)
    whole = codes.shape[1] // SPAN
    blocks[:, :whole, 4:] = codes[:, : whole * SPAN].reshape(rows, whole, SPAN)
    if whole < spans:
        rest = codes[:, whole * SPAN :]
        blocks[:, whole, 4 : 4 + rest.shape[1]] = rest
    return blocks.reshape(rows, -1)


def dequantise_eights(data: Bytes) -> Floats:
    """uint8 [..., bytes per row] -> float32 [..., whole spans of columns]."""
    blocks = data.reshape(*data.shape[:-1], -1, EIGHTS_BYTES)
    scales = np.ascontiguousarray(blocks[..., :4]).view("<f4")
    values: Floats = np.array(E4M3, np.float32)[blocks[..., 4:]] * scales
    return values.reshape(*data.shape[:-1], -1)


def encode_eights(values: Floats) -> Bytes:
    """float32 [..., whole spans of columns] to the nearest codes, the largest of a span at 448."""
    spans = values.reshape(-1, SPAN)
    scales = np.abs(spans).max(-1, keepdims=True) / np.float32(E4M3[_LARGEST])
    scales[scales == 0] = 1
    positive = np.array(E4M3[: _LARGEST + 1], np.float32)
    codes = np.searchsorted((positive[1:] + positive[:-1]) / 2, np.abs(spans) / scales) | (spans < 0) << 7
    return eights(codes.astype(np.uint8), scales).reshape(*values.shape[:-1], -1)


@dataclass(frozen=True, slots=True)
class Integers:
    """Blocks of 4 or 8 bits. bfloat: the type of scales and zeros; zeros: whether there are zero points."""

    bits: int
    bfloat: bool = False
    zeros: bool = False

    @property
    def codes_at(self) -> int:
        return 4 if self.zeros else 2

    @property
    def nbytes(self) -> int:
        return self.codes_at + GROUP * self.bits // 8

    @property
    def middle(self) -> int:
        """The code of zero where there are no zero points."""
        return 1 << self.bits - 1

    def blocks(self, codes: NDArray[Any], scales: Words, zeros: NDArray[Any] | None = None) -> Bytes:
        """codes [rows, columns], bits of scales [rows, groups], zero points likewise -> uint8 [rows, bytes]."""
        rows, groups = scales.shape
        blocks = np.empty((rows, groups, self.nbytes), np.uint8)
        blocks[:, :, :2] = np.ascontiguousarray(scales, "<u2").view(np.uint8).reshape(rows, groups, 2)
        if zeros is not None:
            bits = self._bits(-zeros.astype(np.float32))
            blocks[:, :, 2:4] = np.ascontiguousarray(bits, "<u2").view(np.uint8).reshape(rows, groups, 2)
        sides = codes.astype(np.uint8).reshape(rows, groups, 2, GROUP // 2)
        if self.bits == 4:
            blocks[:, :, self.codes_at :] = sides[:, :, 0] | sides[:, :, 1] << 4
        else:
            blocks[:, :, self.codes_at :] = sides.reshape(rows, groups, GROUP)
        return blocks.reshape(rows, -1)

    def dequantise(self, data: Bytes) -> Floats:
        """uint8 [..., bytes per row] -> float32 [..., columns]."""
        blocks = data.reshape(*data.shape[:-1], -1, self.nbytes)
        codes = blocks[..., self.codes_at :]
        if self.bits == 4:
            codes = np.concatenate((codes & 15, codes >> 4), axis=-1)
        offset = self._number(blocks, 2) if self.zeros else np.float32(-self.middle)
        values: Floats = (codes + offset) * self._number(blocks, 0)
        return values.reshape(*data.shape[:-1], -1)

    def encode(self, values: Floats) -> Bytes:
        """float32 [..., whole groups of columns], rounded to the nearest codes."""
        groups = values.reshape(-1, 1, GROUP)
        most, zeros = np.float32(2 * self.middle - 1), None
        if self.zeros:
            low, high = (np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0))
            bits = self._bits((high - low) / most)
        else:
            bits = self._bits(np.abs(groups).max(-1) / (self.middle - 1))
        scales = self._floats(bits)
        inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
        if self.zeros:
            zeros = np.rint(-low * inverse)
        offset = self.middle if zeros is None else zeros[..., None]
        codes = np.clip(np.rint(groups * inverse[..., None]) + offset, 0, most)
        return self.blocks(codes.reshape(len(groups), GROUP), bits, zeros).reshape(*values.shape[:-1], -1)

    def _number(self, blocks: Bytes, at: int) -> Floats:
        return self._floats(np.ascontiguousarray(blocks[..., at : at + 2]).view("<u2"))

    def _bits(self, values: Floats) -> Words:
        """The nearest numbers in the type of the scales; of bfloat16, those not below in magnitude: nothing clips."""
        if self.bfloat:
            return (values.view(np.uint32) + np.uint32(0xFFFF) >> 16).astype(np.uint16)
        return values.astype(np.float16).view(np.uint16)

    def _floats(self, bits: Words) -> Floats:
        if self.bfloat:
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.view(np.float16).astype(np.float32)


INTEGERS = {
    "INT4": Integers(4),
    "INT4_BF16": Integers(4, bfloat=True),
    "INT4_ZP": Integers(4, zeros=True),
    "INT4_ZP_BF16": Integers(4, bfloat=True, zeros=True),
    "INT8": Integers(8),
    "INT8_BF16": Integers(8, bfloat=True),
}
