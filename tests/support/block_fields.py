"""The fields of GGUF's blocks in plain NumPy: scales, minima and codes of blocks given as uint8 [rows, blocks, bytes].

Codes come one a byte, [rows, columns] in the order of the columns, without sign: what to take off is in `layout`.
Scales and minima come as [rows, scales in a row], and where they are of two levels so do their parts.
"""

from collections.abc import Callable

import numpy as np
from gguf import quants
from isotherm.cpu_kernels.layout import CODES, SPAN, packed_shape
from isotherm.cpu_kernels.packing import Bytes, Halves, pack_codes, pack_headers
from isotherm.experts.formats import FORMATS
from numpy.typing import NDArray
from support.parts import put_parts

Parts = NDArray[np.integer]

_PAIRS = np.array([[0], [2], [4], [6]], np.uint8)
_BITS = np.arange(8, dtype=np.uint8)[:, None]


def half_at(offset: int) -> Callable[[Bytes], Halves]:
    """The reader of a float16 in every block."""

    def read(blocks: Bytes) -> Halves:
        return _half(blocks, offset)

    return read


def _half(blocks: Bytes, offset: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]


def minus_half_at(offset: int) -> Callable[[Bytes], Halves]:
    """The same with the other sign."""
    return lambda blocks: -_half(blocks, offset)


def _rows(codes: Bytes) -> Bytes:
    return np.ascontiguousarray(codes).reshape(len(codes), -1)


def _joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Codes [rows, columns] whose lowest `bits` bits are in `low`, the others in `high`."""
    codes: Bytes = _rows(low) | _rows(high) << np.uint8(bits)
    return codes


def _split_nibbles(data: Bytes) -> Bytes:
    """[..., n] bytes -> [..., 2 n] codes: the low nibbles, then the high ones."""
    return np.concatenate((data & 15, data >> 4), axis=-1)


def _digits(data: Bytes, width: int, shifts: Bytes, mask: int) -> Bytes:
    """Runs of `width` bytes -> [..., runs, shifts, width]: what each shift brings to the lowest bits."""
    runs = data.reshape(*data.shape[:-1], -1, 1, width)
    digits: Bytes = runs >> shifts & np.uint8(mask)
    return digits


def q5_codes(offset: int) -> Callable[[Bytes], Bytes]:
    """Q5_0 and Q5_1: at `offset` 32 fifth bits, then nibbles."""

    def read(blocks: Bytes) -> Bytes:
        high = np.unpackbits(blocks[..., offset : offset + 4], axis=-1, bitorder="little")
        return _joined(_split_nibbles(blocks[..., offset + 4 :]), high, 4)

    return read


def k_scales(blocks: Bytes) -> Parts:
    """Q4_K, Q5_K: the 6-bit scales of the eight sub-blocks."""
    s = blocks[..., 4:16]
    return _rows(np.concatenate((s[..., :4] & 63, (s[..., 8:] & 15) | (s[..., :4] >> 6 << 4)), axis=-1))


def k_minima(blocks: Bytes) -> Parts:
    """Q4_K, Q5_K: the 6-bit minima of the eight sub-blocks."""
    s = blocks[..., 4:16]
    return _rows(np.concatenate((s[..., 4:8] & 63, (s[..., 8:] >> 4) | (s[..., 4:8] >> 6 << 4)), axis=-1))


def q5_k_codes(blocks: Bytes) -> Bytes:
    """Nibbles of two sub-blocks in 32 bytes; bit s of a byte before them is the fifth of sub-block s."""
    high = _digits(blocks[..., 16:48], 32, _BITS, 1)
    low = _digits(blocks[..., 48:], 32, _PAIRS[::2], 15)
    return _joined(low, high, 4)


def q6_k_scales(blocks: Bytes) -> Parts:
    """The signed scales of 16 columns."""
    return _rows(blocks[..., 192:208]).view(np.int8)


def q6_k_codes(blocks: Bytes) -> Bytes:
    """Nibbles of twice 64 bytes, two more bits of twice 32 bytes."""
    low = _digits(blocks[..., :128], 64, _PAIRS[::2], 15)
    return _joined(low, _digits(blocks[..., 128:192], 32, _PAIRS, 3), 4)


def q2_k_scales(blocks: Bytes) -> Parts:
    """The 4-bit scales of 16 columns."""
    return _rows(blocks[..., :16] & 15)


def q2_k_minima(blocks: Bytes) -> Parts:
    """The 4-bit minima of 16 columns."""
    return _rows(blocks[..., :16] >> 4)


def q2_k_codes(blocks: Bytes) -> Bytes:
    return _rows(_digits(blocks[..., 16:80], 32, _PAIRS, 3))


def q3_k_scales(blocks: Bytes) -> Parts:
    """The 6-bit scales of 16 columns: 16 nibbles, then 4 x 4 pairs of bits."""
    s = blocks[..., 96:108]
    high = _digits(s[..., 8:], 4, _PAIRS, 3).reshape(*s.shape[:-1], 16)
    return _rows(_split_nibbles(s[..., :8]) | high << 4).view(np.int8) - np.int8(32)


def q3_k_codes(blocks: Bytes) -> Bytes:
    low = _digits(blocks[..., 32:96], 32, _PAIRS, 3)
    return _joined(low, _digits(blocks[..., :32], 32, _BITS, 1), 2)


def ternary_scales(blocks: Bytes) -> Halves:
    """d for each of eight groups."""
    return np.repeat(_half(blocks, blocks.shape[-1] - 2), 8, axis=-1)


def ternary_codes(name: str) -> Callable[[Bytes], Bytes]:
    """TQ1_0 and TQ2_0, whose scale comes last: -1, 0, 1 (and 2) above 1."""

    def read(blocks: Bytes) -> Bytes:
        unscaled = blocks.copy()
        unscaled[..., -2:] = np.ones(1, np.float16).view(np.uint8)
        return _rows((FORMATS[name].dequantise(unscaled) + 1).astype(np.uint8))

    return read


def iq4_xs_scales(blocks: Bytes) -> Parts:
    """The 6-bit scales of the eight sub-blocks: 8 pairs of bits, then 8 nibbles, low and high by turns."""
    high = _digits(blocks[..., 2:4], 1, _PAIRS, 3)
    low = _digits(blocks[..., 4:8], 1, _PAIRS[::2], 15)
    return _rows(_flat(low) | _flat(high) << 4).view(np.int8) - np.int8(32)


def _flat(digits: Bytes) -> Bytes:
    return digits.reshape(*digits.shape[:2], -1)


def iq4_xs_codes(blocks: Bytes) -> Bytes:
    """Eight times 16 bytes of nibbles."""
    return _rows(_digits(blocks[..., 8:], 16, _PAIRS[::2], 15))


def mxfp4_scales(blocks: Bytes) -> Halves:
    """Powers of two as bfloat16, halved as the values are doubled."""
    scales = quants.MXFP4.e8m0_to_fp32_half(blocks[..., 0])
    return (scales.view(np.uint32) >> 16).astype(np.uint16)


def nvfp4_scales(blocks: Bytes) -> Halves:
    """The 8-bit floats of 16 columns, halved as the values are doubled."""
    scales = quants.NVFP4.ue4m3_to_fp32(blocks[..., :4])
    return scales.astype(np.float16).reshape(len(blocks), -1)


def nvfp4_codes(blocks: Bytes) -> Bytes:
    """Four times 8 bytes of nibbles."""
    return _rows(_digits(blocks[..., 4:], 8, _PAIRS[::2], 15))


def split_nibble_codes(offset: int) -> Callable[[Bytes], Bytes]:
    """Blocks of 32 whose 16 bytes from `offset` hold the first half in the low nibbles."""

    def read(blocks: Bytes) -> Bytes:
        return _rows(_split_nibbles(blocks[..., offset : offset + 16]))

    return read


def q4_k_codes(blocks: Bytes) -> Bytes:
    """Nibbles of two sub-blocks in 32 bytes."""
    return _rows(_digits(blocks[..., 16:], 32, _PAIRS[::2], 15))


def q8_0_codes(blocks: Bytes) -> Bytes:
    """Signed bytes, 128 added."""
    return _rows(blocks[..., 2:] ^ 128)


# Of each format that keeps its codes: scales, codes, minima.
FIELDS: dict[str, tuple[Callable[[Bytes], Halves], Callable[[Bytes], Bytes], Callable[[Bytes], Halves] | None]] = {
    "Q4_0": (half_at(0), split_nibble_codes(2), None),
    "Q4_1": (half_at(0), split_nibble_codes(4), half_at(2)),
    "Q5_0": (half_at(0), q5_codes(2), None),
    "Q5_1": (half_at(0), q5_codes(4), half_at(2)),
    "Q8_0": (half_at(0), q8_0_codes, None),
    "Q2_K": (half_at(80), q2_k_codes, minus_half_at(82)),
    "Q3_K": (half_at(108), q3_k_codes, None),
    "Q4_K": (half_at(0), q4_k_codes, minus_half_at(2)),
    "Q5_K": (half_at(0), q5_k_codes, minus_half_at(2)),
    "Q6_K": (half_at(208), q6_k_codes, None),
    "IQ4_NL": (half_at(0), split_nibble_codes(2), None),
    "IQ4_XS": (half_at(0), iq4_xs_codes, None),
    "MXFP4": (mxfp4_scales, split_nibble_codes(1), None),
    "NVFP4": (nvfp4_scales, nvfp4_codes, None),
    "TQ1_0": (ternary_scales, ternary_codes("TQ1_0"), None),
    "TQ2_0": (ternary_scales, ternary_codes("TQ2_0"), None),
}
# Of each whose scales are of two levels: the parts of its scales and, if it has any, of its minima.
PARTS: dict[str, tuple[Callable[[Bytes], Parts], ...]] = {
    "Q2_K": (q2_k_scales, q2_k_minima),
    "Q3_K": (q3_k_scales,),
    "Q4_K": (k_scales, k_minima),
    "Q5_K": (k_scales, k_minima),
    "Q6_K": (q6_k_scales,),
    "IQ4_XS": (iq4_xs_scales,),
}


def tiles_of(name: str, raw: Bytes, columns: int) -> Bytes:
    """What rows of a format become: tiles [tiles, units, unit_bytes] by its fields."""
    row, (scales, codes, minima) = FORMATS[name], FIELDS[name]
    layout = CODES[row.packed]
    out = np.zeros(packed_shape(row.packed, len(raw), columns), np.uint8)
    blocks = raw.reshape(len(raw), columns // row.block, row.block_bytes)
    shared = SPAN * layout.spans if layout.parts else layout.columns
    pack_headers(scales(blocks), 0, out, shared)
    if minima is not None:
        pack_headers(minima(blocks), layout.minima_at, out, shared)
    if layout.parts:
        put_parts(layout, out, *(read(blocks) for read in PARTS[name]))
    pack_codes(codes(blocks), layout, out)
    return out
