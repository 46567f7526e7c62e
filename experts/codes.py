"""From a checkpoint's blocks to packed tiles: per format, where scales and codes lie and which kernel moves them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.layout import GROUP, KINDS
from ..cpu_kernels.packing import (
    Bytes,
    Halves,
    pack_bytes,
    pack_floats,
    pack_headers,
    pack_paired_nibbles,
    pack_split_nibbles,
)
from .formats import FORMATS, Floats

_NO_FLIP = np.uint32(0)
_SIGN = np.uint32(0x80808080)  # turns four signed bytes into codes that carry 128


def pack_rows(name: str, raw: Bytes, columns: int, out: Bytes) -> None:
    """Pack rows of format `name`, uint8 [rows, bytes per row], into zeroed tiles [tiles, spans, span_bytes]."""
    row = FORMATS[name]
    if not KINDS[row.packed].quantised:
        pack_floats(raw.view(np.uint32 if name == "F32" else np.uint16), out)
        return
    blocks = raw.reshape(len(raw), columns // row.block, row.block_bytes)
    own = _OWN.get(name)
    if own is None:
        codes, scales = _q5_0(blocks) if name == "Q5_0" else quantise_rows(row.dequantise(raw))
        pack_headers(scales, 0, out)
        pack_bytes(codes, columns // GROUP, GROUP, 0, _NO_FLIP, 64, out)
        return
    pack_headers(own.scales(blocks), 0, out)
    if own.minima is not None:
        pack_headers(own.minima(blocks), 64, out)
    own.move(raw, columns // GROUP, out)


def quantise_rows(values: Floats) -> tuple[Bytes, Halves]:
    """8-bit codes (+ 128) [rows, columns] and scales [rows, columns / 32], the largest magnitude at 127."""
    groups = values.reshape(len(values), -1, GROUP)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    inverse = np.divide(1, scales, out=np.zeros(scales.shape, np.float32), where=scales != 0, dtype=np.float32)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127) + 128
    return codes.astype(np.uint8).reshape(values.shape), scales


def _q5_0(blocks: Bytes) -> tuple[Bytes, Halves]:
    """Five-bit codes as they are, moved from an offset of 16 to one of 128."""
    high = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
    low = np.concatenate((blocks[..., 6:] & 15, blocks[..., 6:] >> 4), axis=-1)
    codes = (low | (high << 4)) + np.uint8(128 - 16)
    return codes.reshape(len(blocks), -1), _half_at(0)(blocks)


def _half_at(offset: int) -> Callable[[Bytes], Halves]:
    def read(blocks: Bytes) -> Halves:
        return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]

    return read


def _q4_k_scales(blocks: Bytes) -> Halves:
    """d times the 6-bit scales of the eight sub-blocks."""
    s = blocks[..., 4:16]
    scales = np.concatenate((s[..., :4] & 63, (s[..., 8:] & 15) | (s[..., :4] >> 6 << 4)), axis=-1)
    return _product(_half_at(0)(blocks), scales)


def _q4_k_minima(blocks: Bytes) -> Halves:
    """-dmin times the 6-bit minima of the eight sub-blocks."""
    s = blocks[..., 4:16]
    minima = np.concatenate((s[..., 4:8] & 63, (s[..., 8:] >> 4) | (s[..., 4:8] >> 6 << 4)), axis=-1)
    return _product(-_half_at(2)(blocks), minima)


def _product(factor: Halves, parts: NDArray[np.uint8]) -> Halves:
    products: Floats = factor.astype(np.float32)[..., None] * parts
    return products.astype(np.float16).reshape(len(parts), -1)


@dataclass(frozen=True, slots=True)
class _Own:
    """A format whose codes are kept: scales and minima of its blocks [rows, blocks, bytes], and how its codes move."""

    scales: Callable[[Bytes], Halves]
    minima: Callable[[Bytes], Halves] | None
    move: Callable[[Bytes, int, Bytes], None]


_OWN = {
    "Q4_0": _Own(_half_at(0), None, lambda raw, groups, out: pack_split_nibbles(raw, groups, 18, 2, 64, out)),
    "Q4_1": _Own(_half_at(0), _half_at(2), lambda raw, groups, out: pack_split_nibbles(raw, groups, 20, 4, 128, out)),
    "Q8_0": _Own(_half_at(0), None, lambda raw, groups, out: pack_bytes(raw, groups, 34, 2, _SIGN, 64, out)),
    "Q4_K": _Own(
        _q4_k_scales, _q4_k_minima, lambda raw, groups, out: pack_paired_nibbles(raw, groups, 144, 16, 128, out)
    ),
}
