"""What each op computes, in plain NumPy: the definition that kernels are tested against. Never optimised.

T tokens, n columns, E experts, K experts per token, D head dimension. Everything is float32 unless said otherwise.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .layout import E4M3, KINDS, PART_BYTES, ROWS, SPAN, SUMS, Codes, Record, padded

Array = NDArray[Any]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., n] / sqrt(mean(x^2) + eps) * weight [n]."""
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean + eps) * weight, np.float32)


def quantise(x: Array) -> tuple[Array, Array, Array, Array]:
    """x [n] -> int8 codes [padded n], float32 scales one per 64 codes, int32 sums per 32 and per 16 codes times SUMS.

    A span of 64 whose largest magnitude is below 2^-100 is all zero.
    """
    whole = np.zeros(padded(x.size), np.float32)
    whole[: x.size] = x
    groups = whole.reshape(-1, SPAN)
    largest = np.abs(groups).max(axis=1)
    largest[largest < 2.0**-100] = 0
    inverse = np.zeros_like(largest)
    np.divide(np.float32(127), largest, out=inverse, where=largest > 0)
    codes = np.rint(groups * inverse[:, None]).astype(np.int8)
    sums = [codes.reshape(-1, n).sum(axis=1, dtype=np.int32) * np.int32(factor) for n, factor in SUMS.items()]
    return codes.reshape(-1), largest / np.float32(127), sums[0], sums[1]


def unpack(kind: str, tiles: Array, rows: int, columns: int) -> Array:
    """The numbers in packed tiles, uint8 [tiles, units, unit_bytes] (see `layout`): float32 [rows, columns]."""
    count, units = tiles.shape[:2]
    codes = KINDS[kind].codes
    if kind == "f8":
        return _unpack_eights(tiles)[:rows, :columns]
    if codes is None:
        bits = np.ascontiguousarray(tiles).view({"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[kind])
        values = (bits.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else bits.astype(np.float32)
        together = 2 if kind == "bf16" else 1
        return _by_rows(values.reshape(count, units, SPAN // together, ROWS, together))[:rows, :columns]
    planes = tiles[:, :, codes.high_at :].reshape(count, units * codes.spans, codes.plane_bytes)
    above = codes.low_at - codes.high_at
    stored = _plane(planes[:, :, above:], codes.low)
    if codes.high:
        stored = stored | _plane(planes[:, :, :above], codes.high) << codes.low
    signed = (np.array(codes.unsigned) - codes.offset).astype(np.float32)[_by_rows(stored)]
    scales, minima = _scales(tiles, codes)
    values = signed * np.repeat(scales, codes.columns, axis=1)
    if codes.minima:
        values += np.repeat(minima, codes.columns, axis=1)
    return np.asarray(values[:rows, :columns], np.float32)


def _scales(tiles: Array, codes: Codes) -> tuple[Array, Array]:
    """Scales and minima, float32 [rows, one for `codes.columns` columns]; without minima the latter mean nothing."""
    scales = _headers(tiles[:, :, : codes.minima_at], codes)
    minima = _headers(tiles[:, :, codes.minima_at : codes.parts_at], codes) if codes.minima else scales
    if codes.parts:
        factors, lifts = _parts(tiles[:, :, codes.parts_at :], codes)
        each = factors.shape[1] // scales.shape[1]
        return np.repeat(scales, each, axis=1) * factors, np.repeat(minima, each, axis=1) * lifts
    return scales, minima * scales if codes.zeros else minima


def _parts(tiles: Array, codes: Codes) -> tuple[Array, Array]:
    """The parts of scales and of minima from where they begin in units, float32 as `_scales`."""
    raw = tiles[:, :, : ROWS * PART_BYTES[codes.parts]] if codes.parts else tiles
    by_unit: Array = raw.reshape(*raw.shape[:2], -1, ROWS)
    scales: Array
    minima: Array
    if codes.parts == "bytes":
        scales = minima = by_unit.view(np.int8)
    elif codes.parts == "nibbles":
        scales, minima = by_unit & 15, by_unit >> 4
    elif codes.parts == "sixes":
        spans = np.ascontiguousarray(raw).reshape(*raw.shape[:2], -1, 3 * ROWS)
        words, rest = spans[..., : 2 * ROWS].view(np.uint16), spans[..., 2 * ROWS :]
        four = np.stack([words & 63, words >> 6 & 63, rest & 63, words >> 12 | rest >> 6 << 4], axis=3).astype(np.int16)
        scales, minima = (four[..., :2, :], four[..., 2:, :]) if codes.minima else (four - 32, four)
    else:
        pairs, nibbles = _digits(by_unit[:, :, :2], 2), _digits(by_unit[:, :, 2:], 4)
        scales = minima = (nibbles | pairs << 4).astype(np.int16) - 32
    shape = (*raw.shape[:2], -1, ROWS, 1)
    by_row = [_by_rows(parts.reshape(shape)).astype(np.float32) for parts in (scales, minima)]
    return by_row[0], by_row[1]


def _digits(rows: Array, bits: int) -> Array:
    """Bytes [tiles, units, n, 16 rows] -> [tiles, units, n * 8 / bits, 16 rows], the lowest bits of a byte first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    digits: Array = rows[:, :, :, None] >> shifts & (2**bits - 1)
    return digits.reshape(*rows.shape[:2], -1, ROWS)


def _unpack_eights(tiles: Array) -> Array:
    count, spans = tiles.shape[:2]
    scales = np.ascontiguousarray(tiles[:, :, : 4 * ROWS]).view(np.float32)
    codes = tiles[:, :, 4 * ROWS :].reshape(count, spans, SPAN // 2, ROWS, 2)
    values: Array = np.array(E4M3, np.float32)[_by_rows(codes)]
    values *= np.repeat(_by_rows(scales.reshape(count, spans, 1, ROWS, 1)), SPAN, axis=1)
    return values


def _plane(plane: Array, bits: int) -> Array:
    """A plane's bytes [tiles, spans, bytes] -> [tiles, spans, 16 blocks, 16 rows, 4 columns]."""
    vectors = plane.reshape(*plane.shape[:2], -1, 1, ROWS, 4)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None, None]
    codes: Array = vectors >> shifts & (2**bits - 1)
    return codes.reshape(*plane.shape[:2], -1, ROWS, 4)


def _by_rows(vectors: Array) -> Array:
    """[tiles, units or spans, vectors, 16 rows, columns] -> [rows, columns]."""
    return vectors.transpose(0, 3, 1, 2, 4).reshape(vectors.shape[0] * ROWS, -1)


def _headers(halves: Array, codes: Codes) -> Array:
    """16-bit floats [tiles, units, scales, 16 rows] as bytes -> float32 [rows, scales]."""
    bits = np.ascontiguousarray(halves).view(np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32) if codes.bfloat else bits.view(np.float16)
    return _by_rows(values.reshape(*bits.shape[:2], -1, ROWS, 1)).astype(np.float32)


def bfloat_bits(x: Array) -> Array:
    """The bfloat16 nearest to each float32, ties to even, as uint16. A NaN stays one."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), bits >> 16 | 0x40, rounded).astype(np.uint16)


def record_content(x: Array, record: Record) -> Array:
    """The bytes of the record that holds x [n] (see `layout`), padding of a plain or bf16 one left out."""
    if record == "plain":
        return x.view(np.uint8)
    if record == "bf16":
        return bfloat_bits(x).view(np.uint8)
    with np.errstate(invalid="ignore"):  # codes of what is not finite do not matter: the scale shows it
        return np.concatenate([part.view(np.uint8) for part in quantise(x)])


def recorded(x: Array, record: Record) -> Array:
    """x [..., n] as the numbers that such a record holds, padding left out."""
    if record == "plain":
        return x
    if record == "bf16":
        return (bfloat_bits(x).astype(np.uint32) << 16).view(np.float32)
    rows = x.reshape(-1, x.shape[-1])
    seen = np.empty(rows.shape, np.float32)
    for row, out in zip(rows, seen, strict=True):
        codes, scales, *_ = quantise(row.astype(np.float32))
        out[:] = (codes.reshape(-1, SPAN) * scales[:, None]).reshape(-1)[: row.size]
    return seen.reshape(x.shape)


def linear(x: Array, w: Array, bias: Array | float = 0.0, low: float = -np.inf, high: float = np.inf) -> Array:
    """clamp(x [T, n] w^T [n, rows] + bias [rows], low, high). x is as the kind of w reads it, by `recorded`."""
    y = x.astype(np.float64) @ w.astype(np.float64).T + bias
    return np.asarray(np.clip(y, low, high), np.float32)


def gated(gate: Array, up: Array) -> Array:
    """SiLU(gate) * up."""
    wide = gate.astype(np.float64)
    return np.asarray(wide / (1 + np.exp(-wide)) * up, np.float32)


def route(
    logits: Array, top_k: int, *, softmax_chosen: bool = False, renormalise: bool = False, scale: float = 1.0
) -> tuple[Array, Array]:
    """logits [T, E] -> expert ids [T, K] int64 and their weights [T, K], best first, ties to the lower id.

    softmax_chosen: softmax over the chosen K instead of over all E. A NaN logit counts as -inf.
    """
    logits = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(logits, ids, axis=1)
    pool = chosen if softmax_chosen else logits
    top = pool.max(axis=1, keepdims=True)
    weights = np.exp(chosen - top) / np.exp(pool - top).sum(axis=1, keepdims=True)
    if renormalise:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return ids.astype(np.int64), (weights * scale).astype(np.float32)


def group(ids: Array, num_experts: int) -> tuple[Array, Array, Array, Array]:
    """ids [T, K] -> offsets [E + 1], order [T*K] (place -> pair), position [T*K] (pair -> place), active experts.

    Pair t*K + j is choice j of token t; the pairs of expert e are order[offsets[e]:offsets[e + 1]], by token.
    """
    pairs = ids.reshape(-1)
    order = np.argsort(pairs, kind="stable").astype(np.int64)
    position = np.empty_like(order)
    position[order] = np.arange(pairs.size)
    counts = np.bincount(pairs, minlength=num_experts)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return offsets, order, position, np.flatnonzero(counts).astype(np.int64)


def combine(x: Array, outs: Array, position: Array, weights: Array, gate: Array | None = None) -> Array:
    """x [T, n] + sigmoid(gate [T]) * sum over j of weights [T, K] * outs [T*K, n] at rows position [T*K]."""
    total = np.einsum("tk,tkn->tn", weights.astype(np.float64), outs[position.reshape(weights.shape)])
    if gate is not None:
        total = total / (1 + np.exp(-gate.astype(np.float64)))[:, None]
    return np.asarray(x + total, np.float32)


def rope(x: Array, cosines: Array, sines: Array) -> Array:
    """Rotate x [T, heads, D] by cosines and sines [T, rotary_dim / 2]: element i with element i + rotary_dim / 2."""
    half = cosines.shape[1]
    a, b = x[..., :half], x[..., half : 2 * half]
    cos, sin = cosines[:, None], sines[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)
