"""From blocks to packed tiles: per format, where scales and codes lie and which kernel moves them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..cpu_kernels.layout import GROUP, KINDS
from ..cpu_kernels.packing import (
    Bytes,
    Halves,
    pack_bytes,
    pack_codes,
    pack_eights,
    pack_floats,
    pack_headers,
    pack_paired_nibbles,
    pack_pairs,
    pack_split_nibbles,
)
from . import blocks as b
from .formats import FORMATS, Floats
from .scaled_blocks import INTEGERS, Integers

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
    blocks = raw.reshape(len(raw), columns // row.block, row.block_bytes)
    own = _OWN.get(name)
    if own is None:
        values, scales = quantise_rows(row.dequantise(raw))
        pack_headers(scales, 0, out)
        pack_codes(values, codes, out)
        return
    pack_headers(own.scales(blocks), 0, out, codes.columns)
    if own.minima is not None:
        pack_headers(own.minima(blocks), codes.minima_at, out, codes.columns)
    if own.codes is not None:
        pack_codes(own.codes(blocks), codes, out)
    elif own.move is not None:
        own.move(raw, columns // GROUP, codes.low_at, out)


def quantise_rows(values: Floats) -> tuple[Bytes, Halves]:
    """8-bit codes (+ 128) [rows, columns] and scales [rows, columns / 32], the largest magnitude at 127."""
    groups = values.reshape(len(values), -1, GROUP)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    inverse = np.divide(1, scales, out=np.zeros(scales.shape, np.float32), where=scales != 0, dtype=np.float32)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127) + 128
    return codes.astype(np.uint8).reshape(values.shape), scales


@dataclass(frozen=True, slots=True)
class _Own:
    """A format whose codes are kept: readers of its blocks' fields, and of its codes either a reader or a kernel that
    moves them from the rows, (raw, groups, place of the codes in a span, out)."""

    scales: Callable[[Bytes], Halves]
    minima: Callable[[Bytes], Halves] | None = None
    codes: Callable[[Bytes], Bytes] | None = None
    move: Callable[[Bytes, int, int, Bytes], None] | None = None


def _nibbles(block_bytes: int, codes_at: int) -> Callable[[Bytes, int, int, Bytes], None]:
    """Blocks of 32, the second half in the high nibbles."""
    return lambda raw, groups, at, out: pack_split_nibbles(raw, groups, block_bytes, codes_at, at, out)


def _bytes(block_bytes: int, codes_at: int, flip: Any) -> Callable[[Bytes, int, int, Bytes], None]:
    """Blocks of 32 codes of a byte."""
    return lambda raw, groups, at, out: pack_bytes(raw, groups, block_bytes, codes_at, flip, at, out)


def _integers(row: Integers) -> _Own:
    zeros = b.half_at(2) if row.zeros else None
    move = _nibbles(row.nbytes, row.codes_at) if row.bits == 4 else _bytes(row.nbytes, row.codes_at, np.uint32(0))
    return _Own(b.half_at(0), zeros, move=move)


_OWN = {
    "Q4_0": _Own(b.half_at(0), move=_nibbles(18, 2)),
    "Q4_1": _Own(b.half_at(0), b.half_at(2), move=_nibbles(20, 4)),
    "Q5_0": _Own(b.half_at(0), codes=b.q5_codes(2)),
    "Q5_1": _Own(b.half_at(0), b.half_at(2), codes=b.q5_codes(4)),
    "Q8_0": _Own(b.half_at(0), move=_bytes(34, 2, _SIGN)),
    "Q2_K": _Own(b.q2_k_scales, b.q2_k_minima, codes=b.q2_k_codes),
    "Q3_K": _Own(b.q3_k_scales, codes=b.q3_k_codes),
    "Q4_K": _Own(
        b.k_scales, b.k_minima, move=lambda raw, groups, at, out: pack_paired_nibbles(raw, groups, 144, 16, at, out)
    ),
    "Q5_K": _Own(b.k_scales, b.k_minima, codes=b.q5_k_codes),
    "Q6_K": _Own(b.q6_k_scales, codes=b.q6_k_codes),
    "IQ4_NL": _Own(b.half_at(0), move=_nibbles(18, 2)),
    "IQ4_XS": _Own(b.iq4_xs_scales, codes=b.iq4_xs_codes),
    "MXFP4": _Own(b.mxfp4_scales, move=_nibbles(17, 1)),
    "NVFP4": _Own(b.nvfp4_scales, codes=b.nvfp4_codes),
    "TQ1_0": _Own(b.ternary_scales, codes=b.ternary_codes("TQ1_0")),
    "TQ2_0": _Own(b.ternary_scales, codes=b.ternary_codes("TQ2_0")),
    **{name: _integers(row) for name, row in INTEGERS.items()},
}
