"""From blocks to packed tiles: per format, where scales and codes lie and which kernel moves them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cpu_kernels.headers import pack_halves, pack_listed, pack_products
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

# Moves one field of all blocks, (rows, bytes of a block, its place in a span, its size there, out). The size of a plane
# is its bits, that of scales and minima how many columns share one.
Move = Callable[[Bytes, int, int, int, Bytes], None]

_FLOATS: dict[str, Callable[[Bytes, Bytes], None]] = {
    "F32": lambda raw, out: pack_floats(raw.view(np.uint32), out),
    "F16": lambda raw, out: pack_floats(raw.view(np.uint16), out),
    "BF16": lambda raw, out: pack_pairs(raw.view(np.uint16), out),
}
_SIGN = np.uint32(0x80808080)  # turns four signed bytes into codes that carry 128


def pack_rows(name: str, raw: Bytes, columns: int, out: Bytes) -> None:
    """Pack rows of format `name`, uint8 [rows, bytes per row], into zeroed tiles [tiles, spans, span_bytes]."""
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
    for move, at, size in own.places(codes):
        move(raw, row.block_bytes, at, size, out)


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
    low: Move
    high: Move | None = None
    minima: Move | None = None

    def places(self, codes: Codes) -> Iterator[tuple[Move, int, int]]:
        """Each move with the place and the size of its field in the spans of a kind."""
        yield self.scales, 0, codes.columns
        if self.minima is not None:
            yield self.minima, codes.minima_at, codes.columns
        if self.high is not None:
            yield self.high, codes.high_at, codes.high
        yield self.low, codes.low_at, codes.low


def _plane(octets: Table) -> Move:
    return lambda raw, block, at, bits, out: pack_plane(raw, octets, block, bits, at, out)


def _bytes(codes_at: int, flip: np.uint32) -> Move:
    """Codes of a byte; `flip` changes bits of four at a time."""
    return lambda raw, block, at, _, out: pack_bytes(raw, raw.shape[1] // block, block, codes_at, flip, at, out)


def _bit_rows(bits_at: int) -> Move:
    return lambda raw, block, at, _, out: pack_bit_rows(raw, block, bits_at, at, out)


def _trits(octets: Table, last_at: int) -> Move:
    return lambda raw, block, at, _, out: pack_trits(raw, octets, block, last_at, at, out)


def _half(half_at: int, groups: int = 1) -> Move:
    """16 bits for so many groups of 32."""
    return lambda raw, block, at, _, out: pack_halves(raw, block, half_at, groups, at, out)


def _products(parts: Table, half_at: int, factor: float = 1.0) -> Move:
    return lambda raw, block, at, columns, out: pack_products(raw, parts, block, half_at, factor, columns, at, out)


def _listed(listed: NDArray[np.uint16], count: int) -> Move:
    return lambda raw, block, at, _, out: pack_listed(raw, listed, block, count, at, out)


def _integers(row: Integers) -> _Own:
    codes = _plane(b.nibbles(row.codes_at, 16, 16)) if row.bits == 4 else _bytes(row.codes_at, np.uint32(0))
    return _Own(_half(0), codes, minima=_half(2) if row.zeros else None)


_OWN = {
    "Q4_0": _Own(_half(0), _plane(b.nibbles(2, 16, 16))),
    "Q4_1": _Own(_half(0), _plane(b.nibbles(4, 16, 16)), minima=_half(2)),
    "Q5_0": _Own(_half(0), _plane(b.nibbles(6, 16, 16)), _bit_rows(2)),
    "Q5_1": _Own(_half(0), _plane(b.nibbles(8, 16, 16)), _bit_rows(4), _half(2)),
    "Q8_0": _Own(_half(0), _bytes(2, _SIGN)),
    "Q2_K": _Own(
        _products(b.q2_k_parts(0), 80), _plane(b.pairs(16, 32, 64)), minima=_products(b.q2_k_parts(4), 82, -1)
    ),
    "Q3_K": _Own(_products(b.q3_k_scales(), 108), _plane(b.pairs(32, 32, 64)), _plane(b.octets(0, 32, range(8), 32))),
    "Q4_K": _Own(_products(b.k_scales(), 0), _plane(b.nibbles(16, 32, 128)), minima=_products(b.k_minima(), 2, -1)),
    "Q5_K": _Own(
        _products(b.k_scales(), 0),
        _plane(b.nibbles(48, 32, 128)),
        _plane(b.octets(16, 32, range(8), 32)),
        _products(b.k_minima(), 2, -1),
    ),
    "Q6_K": _Own(_products(b.q6_k_scales(), 208), _plane(b.nibbles(0, 64, 128)), _plane(b.pairs(128, 32, 64))),
    "IQ4_NL": _Own(_half(0), _plane(b.nibbles(2, 16, 16))),
    "IQ4_XS": _Own(_products(b.iq4_xs_scales(), 0), _plane(b.nibbles(8, 16, 128))),
    "MXFP4": _Own(_listed(b.mxfp4_scales(), 1), _plane(b.nibbles(1, 16, 16))),
    "NVFP4": _Own(_listed(b.nvfp4_scales(), 4), _plane(b.nibbles(4, 8, 32))),
    "TQ1_0": _Own(_half(52, 8), _trits(b.trit_octets(), 48)),
    "TQ2_0": _Own(_half(64, 8), _plane(b.pairs(0, 32, 64))),
    **{name: _integers(row) for name, row in INTEGERS.items()},
}
