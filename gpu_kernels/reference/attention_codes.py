"""Attention over a cache of codes: products of integers, exact in any order, so float64 may sum them too.

Queries are rounded to codes of 16 bits. Weights times the scales of their values are rounded to codes relative to the
largest of a row's stride.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import KvCache
from .fused import divide, fma
from .kv import CHUNK, KEY_GROUP, KV_BLOCK, SMALLEST, key_codes, key_scales, value_codes, value_scales

_LIMIT = 8191  # of codes of queries
_WEIGHT_LIMIT = 2 * _LIMIT + 1
_LOG2_E = 1.4426950408889634


class CodeQueries:
    """Queries q [kv_heads, G, R, head_dim] and the cache that they meet. padded: q with zeros to whole chunks; scale:
    what makes exponents of 2 of scores, [kv_heads, G, R, 1]."""

    def __init__(self, q: Tensor, cache: KvCache) -> None:
        self._cache = cache
        self.padded = pad(q, (0, -q.shape[-1] % CHUNK))
        scale, inverse = _scaling(q.abs().amax(dim=-1, keepdim=True), _LIMIT)
        self.scale = scale * _LOG2_E
        self._codes = _rounded(self.padded, inverse)

    def scores(self, blocks: Tensor) -> Tensor:
        """With the keys of blocks [G, B], but for the queries' scales: [kv_heads, G, R, P]."""
        keys, scales = key_codes(self._cache, blocks), key_scales(self._cache, blocks)
        total = torch.zeros_like(self.scale * scales[:, :, :1])
        for number, scale in enumerate(torch.split(scales, 1, dim=2)):
            group = slice(number * KEY_GROUP, (number + 1) * KEY_GROUP)
            total = fma((self._codes[..., group] @ keys[:, :, group]).float(), scale, total)
        return total

    def weighted(self, weights: Tensor, seen: Tensor, kept: Tensor, blocks: Tensor) -> Tensor:
        """Values of blocks [G, B] by their weights [kv_heads, G, R, strides, 64], as codes: [kv_heads, G, R, D]. kept
        [kv_heads, G, R, strides]: what is left of the sum before each stride."""
        scales = torch.unflatten(value_scales(self._cache, blocks), 2, (1, *weights.shape[-2:]))
        scaled = torch.where(seen, weights * scales, 0)
        new, inverse = _scaling(scaled.amax(dim=-1, keepdim=True), _WEIGHT_LIMIT)
        codes = torch.unflatten(_rounded(scaled, inverse), -1, (-1, KV_BLOCK))
        total = torch.zeros_like(self.padded)
        for number, here in enumerate(torch.split(blocks, codes.shape[-2], dim=1)):
            values = value_codes(self._cache, here)  # [kv_heads, G, 4, 16, D]
            a, b, c, d = (codes[..., number, :, :].transpose(2, 3) @ values).float().unbind(dim=2)
            total = fma(((a + b) + c) + d, new[..., number, :], total * kept[..., number, None])
        return total


def _scaling(largest: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Of largest magnitudes: what codes up to `limit` stand for, NaN for what is not finite, and its inverse."""
    scale = torch.where(torch.isfinite(largest), largest * (1 / limit), torch.nan)
    return scale, torch.where(largest > SMALLEST, divide(limit, largest), 0)


def _rounded(x: Tensor, inverse: Tensor) -> Tensor:
    """round(x * inverse), rounded once, as float64; of a NaN zero."""
    return torch.round(x.double() * inverse.double()).nan_to_num(0.0)
