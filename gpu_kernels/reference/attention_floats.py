"""Attention over a cache of floats: products and sums in float32, one element or position after the other."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import KvCache
from .fused import fma
from .kv import key_floats, value_floats

_LOG2_E = 1.4426950408889634


class FloatQueries:
    """Queries q [kv_heads, G, R, head_dim] and the cache that they meet. padded: q with zeros to whole chunks; scale:
    what makes exponents of 2 of scores, [kv_heads, G, R, 1]."""

    def __init__(self, q: Tensor, cache: KvCache) -> None:
        self._cache = cache
        self.padded = pad(q, (0, -q.shape[-1] % 16))
        self.scale = torch.full_like(q[..., :1], _LOG2_E)

    def scores(self, blocks: Tensor) -> Tensor:
        """With the keys of blocks [G, B]: [kv_heads, G, R, P]. Even and odd elements are summed by themselves."""
        keys = key_floats(self._cache, blocks).unsqueeze(3)  # [kv_heads, G, D, 1, P]
        queries = self.padded.unsqueeze(-1)
        sums = [torch.zeros_like(queries[:, :, :, 0] * keys[:, :, 0]) for _ in range(2)]
        for element in range(keys.shape[2]):
            sums[element % 2] = fma(queries[:, :, :, element], keys[:, :, element], sums[element % 2])
        return sums[0] + sums[1]

    def add(self, total: Tensor, old: Tensor, weights: Tensor, seen: Tensor, blocks: Tensor) -> Tensor:
        """total [kv_heads, G, R, D] * old + weights [kv_heads, G, R, 64] times the values of blocks [G, 4]."""
        values = value_floats(self._cache, blocks).unsqueeze(2)  # [kv_heads, G, 1, 64, D]
        total = total * old
        for position in range(weights.shape[-1]):
            one = slice(position, position + 1)
            total = torch.where(seen[..., one], fma(weights[..., one], values[:, :, :, position], total), total)
        return total
