"""What the KV cache holds and what attention computes, in plain NumPy: the definition that kernels are tested against.

T tokens, D head dimension. Caches of numbers: k [blocks, kv_heads, D, KV_BLOCK], v [blocks, kv_heads, KV_BLOCK, D],
float32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kv_layout import CHUNK, KEY_GROUP, KV_KINDS, key_bytes, padded_head, part_bytes
from .layout import KV_BLOCK
from .reference import bfloat_bits

Array = NDArray[Any]


def store_kv(k_cache: Array, v_cache: Array, k: Array, v: Array, slots: Array) -> None:
    """Put k, v [T, kv_heads, D] at slots [T] (block * KV_BLOCK + offset) of caches of numbers."""
    for token, slot in enumerate(slots):
        block, offset = divmod(int(slot), KV_BLOCK)
        k_cache[block, :, :, offset] = k[token]
        v_cache[block, :, offset, :] = v[token]


def attention(q: Array, k_cache: Array, v_cache: Array, table: Array, positions: Array, window: int = 0) -> Array:
    """q [T, heads, D] (already scaled) of one sequence at positions [T] -> float64 [T, heads, D].

    table: the sequence's blocks in the caches of numbers. Position p sees max(0, p - window + 1) .. p (0 = all).
    """
    k = np.concatenate([k_cache[b] for b in table], axis=-1).astype(np.float64)  # [kv_heads, D, context]
    v = np.concatenate([v_cache[b] for b in table], axis=1).astype(np.float64)  # [kv_heads, context, D]
    shared = q.shape[1] // k.shape[0]
    out = np.empty(q.shape, np.float64)
    for token, p in enumerate(positions):
        first = max(0, p - window + 1) if window else 0
        for head in range(q.shape[1]):
            scores = q[token, head].astype(np.float64) @ k[head // shared, :, first : p + 1]
            chances = np.exp(scores - scores.max())
            out[token, head] = chances / chances.sum() @ v[head // shared, first : p + 1]
    return out


def codes_of(x: Array, limit: int) -> tuple[Array, Array]:
    """Groups x [..., n] -> integer codes [..., n] and scales [..., 1], bfloat16 that were rounded up.

    A group whose largest magnitude is below 2^-100 is all zero; one with a NaN or an infinity has the scale NaN.
    """
    largest = np.abs(x).max(axis=-1, keepdims=True).astype(np.float32)
    bits = (largest / np.float32(limit)).view(np.uint32) + np.uint32(0xFFFF) & np.uint32(0xFFFF0000)
    scales = np.where(largest < 2.0**-100, np.float32(0), bits.view(np.float32))
    inverse = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=inverse, where=scales > 0)
    finite = np.isfinite(largest)
    products = np.where(finite, x, 0).astype(np.float64) * np.where(finite, inverse, 0)  # exact
    codes = np.rint(products).astype(np.int32)
    return codes, np.where(finite, scales, np.float32(np.nan))


def pack_kv(kind: str, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Caches of numbers k and v as a cache of `kind`: (uint8 [blocks, kv_heads, part bytes], k and v as it holds them).

    The last two are float32, for `attention`.
    """
    blocks, kv_heads, head_dim, _ = k.shape
    cache = np.zeros((blocks, kv_heads, part_bytes(kind, head_dim)), np.uint8)
    padding = padded_head(head_dim) - head_dim
    keys = np.pad(k, ((0, 0), (0, 0), (0, padding), (0, 0)))
    values = np.pad(v, ((0, 0), (0, 0), (0, 0), (0, padding)))
    at = key_bytes(kind, head_dim)
    if KV_KINDS[kind].limit:
        seen_k, seen_v = _pack_codes(kind, cache, keys, values, at)
    else:
        seen_k, seen_v = (_round(kind, x) for x in (keys, values))
        for start, x in ((0, keys), (at, values)):
            raw = np.ascontiguousarray(_stored(kind, x)).view(np.uint8).reshape(blocks, kv_heads, -1)
            cache[:, :, start : start + raw.shape[-1]] = raw
    return cache, seen_k[:, :, :head_dim], seen_v[..., :head_dim]


def _stored(kind: str, x: Array) -> Array:
    """The numbers in the float type of a kind; bfloat16 as uint16, rounded to the nearest, ties to even."""
    if kind == "bf16":
        return bfloat_bits(x)
    return x.astype({"f16": np.float16, "f32": np.float32}[kind])


def _round(kind: str, x: Array) -> Array:
    stored = _stored(kind, x)
    return (stored.astype(np.uint32) << 16).view(np.float32) if kind == "bf16" else stored.astype(np.float32)


def _pack_codes(kind: str, cache: Array, keys: Array, values: Array, at: int) -> tuple[Array, Array]:
    """Fill `cache` with the codes and scales of padded keys and values; the numbers that they stand for."""
    integer, limit = (np.int16 if kind == "int16" else np.int8), KV_KINDS[kind].limit
    blocks, kv_heads, row, _ = keys.shape
    groups = -(-row // KEY_GROUP)
    grouped = np.pad(keys, ((0, 0), (0, 0), (0, groups * KEY_GROUP - row), (0, 0)))
    grouped = grouped.reshape(blocks, kv_heads, groups, KEY_GROUP, KV_BLOCK).transpose(0, 1, 2, 4, 3)
    codes, scales = codes_of(grouped, limit)  # [blocks, kv_heads, groups, position, element], [..., 1]
    seen_k = (codes * scales).transpose(0, 1, 2, 4, 3).reshape(blocks, kv_heads, -1, KV_BLOCK)[:, :, :row]
    flat = codes.transpose(0, 1, 2, 4, 3).reshape(blocks, kv_heads, -1, 2, KV_BLOCK)[:, :, : row // 2]
    _put(cache, 0, flat.transpose(0, 1, 2, 4, 3).astype(integer))
    _put(cache, row * KV_BLOCK * KV_KINDS[kind].size, _high_half(scales[..., 0]))
    codes, scales = codes_of(values, limit)  # [blocks, kv_heads, position, element], [..., 1]
    pairs = codes.reshape(blocks, kv_heads, KV_BLOCK // 2, 2, row // CHUNK, CHUNK)
    _put(cache, at, pairs.transpose(0, 1, 4, 2, 5, 3).astype(integer))
    _put(cache, at + row * KV_BLOCK * KV_KINDS[kind].size, _high_half(scales[..., 0]))
    return seen_k.astype(np.float32), (codes * scales).astype(np.float32)


def _put(cache: Array, at: int, x: Array) -> None:
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(*cache.shape[:2], -1)
    cache[:, :, at : at + raw.shape[-1]] = raw


def _high_half(scales: Array) -> Array:
    return (np.ascontiguousarray(scales, np.float32).view(np.uint32) >> 16).astype(np.uint16)
