"""From blocks to packed tiles: per format, where scales and codes lie and which kernel moves them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.headers import pack_halves, pack_listed, pack_part_bytes, pack_sixes
from ..cpu_kernels.layout import GROUP, KINDS, Codes
from ..cpu_kernels.packing import (
    Bytes,
    Halves,
    Table,
    pack_bit_rows,
    pack_bytes,
    pack_codes,
    pack_eights,
    pack_floats,
    pack_headers,
    pack_pairs,
    pack_plane,
    pack_trits,
)
from . import blocks as b
from .formats import FORMATS, Floats
from .scaled_blocks import INTEGERS, Integers

# Moves one field of all blocks: (rows, bytes of a block, the codes of a kind, the place in a unit, out). A plane has
# a size besides, its bits.
Move = Callable[[Bytes, int, Codes, int, Bytes], None]
MovePlane = Callable[[Bytes, int, Codes, int, int, Bytes], None]

_FLOATS: dict[str, Callable[[Bytes, Bytes], None]] = {
    "F32": lambda raw, out: pack_floats(raw.view(np.uint32), out),
    "F16": lambda raw, out: pack_floats(raw.view(np.uint16), out),
    "BF16": lambda raw, out: pack_pairs(raw.view(np.uint16), out),
}
_SIGN = np.uint32(0x80808080)  # turns four signed bytes into codes that carry 128
_MINUS = 0x8000  # what changes a float16's sign: these minima are taken off


def pack_rows(name: str, raw: Bytes, columns: int, out: Bytes) -> None:
    """Pack rows of format `name`, uint8 [rows, bytes per row], into zeroed tiles [tiles, units, unit_bytes]."""
    row = FORMATS[name]
    codes = KINDS[row.packed].codes
    if row.packed == "f8":
        pack_eights(raw.reshape(len(raw), -1, row.block_bytes), out)
        return
    if codes is None:
        _FLOATS[name](raw, out)
        return
    own = _OWN.get(name)
    if own is None:
        values, scales = quantise_rows(row.dequantise(raw))
        pack_headers(scales, 0, out)
        pack_codes(values, codes, out)
        return
    own.move(raw, row.block_bytes, codes, out)


def quantise_rows(values: Floats) -> tuple[Bytes, Halves]:
    """8-bit codes (+ 128) [rows, columns] and scales [rows, columns / 32], the largest magnitude at 127."""
    groups = values.reshape(len(values), -1, GROUP)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    inverse = np.divide(1, scales, out=np.zeros(scales.shape, np.float32), where=scales != 0, dtype=np.float32)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127) + 128
    return codes.astype(np.uint8).reshape(values.shape), scales


@dataclass(frozen=True, slots=True)
class _Own:
    """A format whose codes are kept: what moves each field of its blocks."""

    scales: Move
    low: MovePlane
    high: MovePlane | None = None
    minima: Move | None = None
    parts: Move | None = None

    def move(self, raw: Bytes, block_bytes: int, codes: Codes, out: Bytes) -> None:
        """Move all fields to where a kind has them."""
        self.scales(raw, block_bytes, codes, 0, out)
        if self.minima is not None:
            self.minima(raw, block_bytes, codes, codes.minima_at, out)
        if self.parts is not None:
            self.parts(raw, block_bytes, codes, codes.parts_at, out)
        if self.high is not None:
            self.high(raw, block_bytes, codes, codes.high_at, codes.high, out)
        self.low(raw, block_bytes, codes, codes.low_at, codes.low, out)


def _plane(octets: Table) -> MovePlane:
    return lambda raw, block, codes, at, bits, out: pack_plane(
        raw, octets, block, bits, at, codes.spans, codes.plane_bytes, out
    )


def _bytes(codes_at: int, flip: np.uint32) -> MovePlane:
    """Codes of a byte; `flip` changes bits of four at a time."""
    return lambda raw, block, _, at, bits, out: pack_bytes(raw, raw.shape[1] // block, block, codes_at, flip, at, out)


def _bit_rows(bits_at: int) -> MovePlane:
    return lambda raw, block, _, at, bits, out: pack_bit_rows(raw, block, bits_at, at, out)


def _trits(octets: Table, last_at: int) -> MovePlane:
    return lambda raw, block, _, at, bits, out: pack_trits(raw, octets, block, last_at, at, out)


def _half(half_at: int, groups: int = 1, flip: int = 0) -> Move:
    """16 bits, XORed with `flip`, for so many groups of 32, or for a unit."""
    return lambda raw, block, codes, at, out: pack_halves(raw, block, half_at, flip, groups, codes.halves, at, out)


def _sixes(parts: Table) -> Move:
    return lambda raw, block, _, at, out: pack_sixes(raw, parts, block, at, out)


def _part_bytes(first: int, count: int) -> Move:
    return lambda raw, block, _, at, out: pack_part_bytes(raw, block, first, count, at, out)


def _listed(listed: NDArray[np.uint16], count: int) -> Move:
    return lambda raw, block, _, at, out: pack_listed(raw, listed, block, count, at, out)


def _integers(row: Integers) -> _Own:
    codes = _plane(b.nibbles(row.codes_at, 16, 16)) if row.bits == 4 else _bytes(row.codes_at, np.uint32(0))
    return _Own(_half(0), codes, minima=_half(2) if row.zeros else None)


_OWN = {
    "Q4_0": _Own(_half(0), _plane(b.nibbles(2, 16, 16))),
    "Q4_1": _Own(_half(0), _plane(b.nibbles(4, 16, 16)), minima=_half(2)),
    "Q5_0": _Own(_half(0), _plane(b.nibbles(6, 16, 16)), _bit_rows(2)),
    "Q5_1": _Own(_half(0), _plane(b.nibbles(8, 16, 16)), _bit_rows(4), _half(2)),
    "Q8_0": _Own(_half(0), _bytes(2, _SIGN)),
    "Q2_K": _Own(_half(80), _plane(b.pairs(16, 32, 64)), minima=_half(82, flip=_MINUS), parts=_part_bytes(0, 16)),
    "Q3_K": _Own(
        _half(108), _plane(b.pairs(32, 32, 64)), _plane(b.octets(0, 32, range(8), 32)), parts=_sixes(b.q3_k_parts())
    ),
    "Q4_K": _Own(_half(0), _plane(b.nibbles(16, 32, 128)), minima=_half(2, flip=_MINUS), parts=_sixes(b.k_parts())),
    "Q5_K": _Own(
        _half(0),
        _plane(b.nibbles(48, 32, 128)),
        _plane(b.octets(16, 32, range(8), 32)),
        _half(2, flip=_MINUS),
        _sixes(b.k_parts()),
    ),
    "Q6_K": _Own(_half(208), _plane(b.nibbles(0, 64, 128)), _plane(b.pairs(128, 32, 64)), parts=_part_bytes(192, 16)),
    "IQ4_NL": _Own(_half(0), _plane(b.nibbles(2, 16, 16))),
    "IQ4_XS": _Own(_half(0), _plane(b.nibbles(8, 16, 128)), parts=_part_bytes(2, 6)),
    "MXFP4": _Own(_listed(b.mxfp4_scales(), 1), _plane(b.nibbles(1, 16, 16))),
    "NVFP4": _Own(_listed(b.nvfp4_scales(), 4), _plane(b.nibbles(4, 8, 32))),
    "TQ1_0": _Own(_half(52, 8), _trits(b.trit_octets(), 48)),
    "TQ2_0": _Own(_half(64, 8), _plane(b.pairs(0, 32, 64))),
    **{name: _integers(row) for name, row in INTEGERS.items()},
}
