"""Attention over a cache of floats: products and sums in float32, one element or position after the other."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import KvCache
from .fused import add
from .kv import KV_BLOCK, key_floats, value_floats

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
        keys = key_floats(self._cache, blocks).double().unsqueeze(2)  # [kv_heads, G, 1, D, P]
        queries = self.padded.double().unsqueeze(-1)
        products = (queries[..., element, :] * keys[..., element, :] for element in range(keys.shape[3]))
        sums = [torch.zeros_like(self.scale)] * 2
        for element, product in enumerate(products):
            sums[element % 2] = add(product, sums[element % 2])
        return sums[0] + sums[1]

    def weighted(self, weights: Tensor, seen: Tensor, kept: Tensor, blocks: Tensor) -> Tensor:
        """Values of blocks [G, B] by their weights [kv_heads, G, R, strides, 64], position by position: [kv_heads, G,
        R, D]. kept [kv_heads, G, R, strides]: what is left of the sum before each stride."""
        total = torch.zeros_like(self.padded)
        for number, here in enumerate(torch.split(blocks, weights.shape[-1] // KV_BLOCK, dim=1)):
            values = value_floats(self._cache, here).double().unsqueeze(2)  # [kv_heads, G, 1, 64, D]
            total = total * kept[..., number, None]
            factors, visible = weights[..., number, :, None].double(), seen[..., number, :, None]
            for position in visible.flatten(0, -3).any(dim=0).nonzero()[:, 0].tolist():
                added = add(factors[..., position, :] * values[..., position, :], total)
                total = torch.where(visible[..., position, :], added, total)
        return total
