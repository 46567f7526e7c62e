"""Packed tiles as numbers, by torch. `cpu_kernels.layout` says how they lie in memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..tensors import ROWS, SPAN, CodeLayout, Matrix

_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Numbers:
    """What tiles hold, all float32 and along the columns first. values: [columns of whole spans, rows], in units of
    scales [groups of columns, rows] if there are such; of a group the minimum is added to each product."""

    values: Tensor
    scales: Tensor | None = None
    minima: Tensor | None = None

    @property
    def columns(self) -> int:
        """That share a scale."""
        assert self.scales is not None
        return self.values.shape[0] // self.scales.shape[0]

    def dense(self) -> Tensor:
        """The weights themselves, [columns, rows]."""
        if self.scales is None:
            return self.values
        values = self.values * self.scales.repeat_interleave(self.columns, 0)
        return values if self.minima is None else values + self.minima.repeat_interleave(self.columns, 0)


def unpack(matrix: Matrix, tiles: Tensor) -> Numbers:
    """Some tiles of the matrix, uint8 [tiles, units, unit_bytes]."""
    codes = matrix.kind.codes
    if codes is not None:
        return _unpack_codes(codes, tiles, matrix.spans)
    if matrix.name == "f8":
        return _unpack_eights(tiles)
    together = 2 if matrix.name == "bf16" else 1
    values = tiles.contiguous().view(_FLOATS[matrix.name])
    return Numbers(_by_columns(values.unflatten(2, (-1, ROWS, together))).float())


def _unpack_codes(codes: CodeLayout, tiles: Tensor, spans: int) -> Numbers:
    planes = tiles[:, :, codes.high_at :].reshape(tiles.shape[0], -1, codes.plane_bytes)[:, :spans]
    above = codes.low_at - codes.high_at
    stored = _plane(planes[:, :, above:], codes.low)
    if codes.high:
        stored = stored | _plane(planes[:, :, :above], codes.high) << codes.low
    stored = _by_columns(stored)
    if codes.table:
        values = torch.tensor(codes.table, dtype=torch.float32, device=tiles.device)[stored.int()]
    else:
        values = stored.float() - codes.offset
    scales, minima = _scales(codes, tiles)
    groups = spans * SPAN // codes.columns
    return Numbers(values, scales[:groups], None if minima is None else minima[:groups])


def _unpack_eights(tiles: Tensor) -> Numbers:
    """Shifted into the place of a float16, a code is 2^-8 of its number."""
    codes = tiles[:, :, 4 * ROWS :].unflatten(2, (-1, ROWS, 2)).short() << 8
    halves = _by_columns(codes >> 1 & 0xBF80 - 0x10000).view(torch.float16)
    scales = tiles[:, :, : 4 * ROWS].contiguous().view(torch.float32)
    return Numbers(halves.float(), _by_columns(scales[:, :, None, :, None]) * 256)


def _scales(codes: CodeLayout, tiles: Tensor) -> tuple[Tensor, Tensor | None]:
    scales = _headers(codes, tiles[:, :, : codes.minima_at])
    minima = _headers(codes, tiles[:, :, codes.minima_at : codes.parts_at]) if codes.minima else None
    if codes.parts:
        factors, lifts = _PARTS[codes.parts](codes, tiles[:, :, codes.parts_at :])
        scales = _by_parts(scales, factors)
        return scales, None if minima is None else _by_parts(minima, lifts)
    return scales, minima * scales if minima is not None and codes.zeros else minima


def _headers(codes: CodeLayout, halves: Tensor) -> Tensor:
    """16-bit floats as bytes [tiles, units, scales of 16 rows] -> float32 [scales, rows]."""
    values = halves.contiguous().view(torch.bfloat16 if codes.bfloat else torch.float16)
    return _by_columns(values.unflatten(2, (-1, ROWS, 1))).float()


def _by_parts(halves: Tensor, parts: Tensor) -> Tensor:
    """Halves of units [units, rows] times the parts [tiles, units, scales of a unit, 16 rows]."""
    return halves.repeat_interleave(parts.shape[2], 0) * _by_columns(parts[..., None]).float()


def _bytes(_: CodeLayout, raw: Tensor) -> tuple[Tensor, Tensor]:
    parts = raw[:, :, : 16 * ROWS].contiguous().view(torch.int8).unflatten(2, (-1, ROWS))
    return parts, parts


def _nibbles(_: CodeLayout, raw: Tensor) -> tuple[Tensor, Tensor]:
    parts = raw[:, :, : 16 * ROWS].unflatten(2, (-1, ROWS))
    return parts & 15, parts >> 4


def _sixes(codes: CodeLayout, raw: Tensor) -> tuple[Tensor, Tensor]:
    lines = raw[:, :, : 4 * 3 * ROWS].unflatten(2, (4, 3 * ROWS))
    words = lines[..., : 2 * ROWS].contiguous().view(torch.int16).int() & 0xFFFF
    rest = lines[..., 2 * ROWS :].int()
    four = torch.stack([words & 63, words >> 6 & 63, rest & 63, words >> 12 | rest >> 6 << 4], 3)
    if codes.minima:
        return four[..., :2, :].flatten(2, 3), four[..., 2:, :].flatten(2, 3)
    return four.flatten(2, 3) - 32, four.flatten(2, 3)


def _split(_: CodeLayout, raw: Tensor) -> tuple[Tensor, Tensor]:
    lines = raw[:, :, : 6 * ROWS].unflatten(2, (6, ROWS))
    parts = (_digits(lines[:, :, 2:], 4) | _digits(lines[:, :, :2], 2) << 4).int() - 32
    return parts, parts


_PARTS = {"bytes": _bytes, "nibbles": _nibbles, "sixes": _sixes, "split": _split}  # those of scales and of minima


def _digits(lines: Tensor, bits: int) -> Tensor:
    """Bytes [tiles, units, n, 16 rows] -> [tiles, units, n * 8 / bits, 16 rows], the lowest bits of a byte first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=lines.device)
    digits: Tensor = lines[:, :, :, None] >> shifts[:, None] & 2**bits - 1
    return digits.flatten(2, 3)


def _plane(plane: Tensor, bits: int) -> Tensor:
    """A plane's bytes [tiles, spans, bytes] -> [tiles, spans, 16 blocks, 16 rows, 4 columns]."""
    vectors = torch.unflatten(plane, 2, (-1, 1, ROWS, 4))
    if bits < 8:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=plane.device)
        vectors = vectors >> shifts[:, None, None] & 2**bits - 1
    return vectors.flatten(2, 3)


def _by_columns(vectors: Tensor) -> Tensor:
    """[tiles, units or spans, vectors, 16 rows, columns] -> [columns, rows]."""
    return vectors.permute(1, 2, 4, 0, 3).reshape(-1, vectors.shape[0] * ROWS)
