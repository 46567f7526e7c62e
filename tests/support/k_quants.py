"""A plain encoder for the 256-block formats Q4_K, Q5_K and Q6_K: round to nearest, no search. For test files only."""

import numpy as np


def quantise_k(values: np.ndarray, name: str) -> np.ndarray:
    """float32 (..., columns) -> uint8 (..., bytes per row); columns must be a multiple of 256."""
    blocks = values.reshape(-1, 256)
    encoded = _q6_k(blocks) if name == "Q6_K" else _q45_k(blocks, {"Q4_K": 4, "Q5_K": 5}[name])
    return encoded.reshape(*values.shape[:-1], -1)


def _bytes(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).view(np.uint8).reshape(len(values), -1)


def _inverse(values: np.ndarray) -> np.ndarray:
    return np.divide(1, values, out=np.zeros_like(values), where=values != 0)


def _q45_k(blocks: np.ndarray, bits: int) -> np.ndarray:
    subs = blocks.reshape(-1, 8, 32)
    low = np.minimum(subs.min(-1), 0)
    step = (subs.max(-1) - low) / (2**bits - 1)
    d = (step.max(-1) / 63).astype(np.float16).astype(np.float32)[:, None]
    d_min = (-low.min(-1) / 63).astype(np.float16).astype(np.float32)[:, None]
    scale = np.clip(np.rint(step * _inverse(d)), 0, 63).astype(np.uint8)
    offset = np.clip(np.rint(-low * _inverse(d_min)), 0, 63).astype(np.uint8)
    codes = np.rint((subs + (d_min * offset)[..., None]) * _inverse(d * scale)[..., None])
    codes = np.clip(codes, 0, 2**bits - 1).astype(np.uint8)
    high = codes >> 4
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    parts = [_bytes(d), _bytes(d_min), _pack_scales(scale, offset)]
    if bits == 5:
        parts.append(np.bitwise_or.reduce(high << np.arange(8, dtype=np.uint8)[:, None], axis=1))
    parts.append((pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(blocks), 128))
    return np.concatenate(parts, axis=1)


def _pack_scales(scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Eight 6-bit scales and eight 6-bit minima in 12 bytes."""
    first = scale[:, :4] | (scale[:, 4:] >> 4) << 6
    second = offset[:, :4] | (offset[:, 4:] >> 4) << 6
    third = (scale[:, 4:] & 15) | (offset[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    subs = blocks.reshape(-1, 16, 16)
    step = np.abs(subs).max(-1) / 31
    d = (step.max(-1) / 127).astype(np.float16).astype(np.float32)[:, None]
    scale = np.clip(np.rint(step * _inverse(d)), 0, 127).astype(np.int8)
    codes = np.rint(subs * _inverse(d * scale)[..., None])
    codes = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # half, quarter, element
    low, high = codes & 15, codes >> 4
    ql = np.stack([low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4], axis=2)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    rows = len(blocks)
    return np.concatenate([ql.reshape(rows, 128), qh.reshape(rows, 64), scale.view(np.uint8), _bytes(d)], axis=1)
