"""The paged cache of keys and values: the bytes that the CPU's kernels write, and the numbers that they stand for.

`cpu_kernels.kv_layout` says how a part lies. D here is head_dim padded to 16; G sequences of B blocks each are read
together, P = 16 * B positions.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import KvCache, Sequences

KV_BLOCK, KEY_GROUP, CHUNK = 16, 32, 16  # positions of a block; elements that share a scale, and of a chunk of values
SMALLEST = 2.0**-100  # a group whose largest magnitude is below it is all zero
_TYPES = {"int16": torch.int16, "int8": torch.int8, "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def store(k: Tensor, v: Tensor, cache: KvCache, sequences: Sequences, count: Tensor) -> None:
    """See `Kernels.store`. k, v: float32 [T, kv_heads * head_dim]."""
    tokens = int(count)
    block, offset = sequences.slots[:tokens] // KV_BLOCK, sequences.slots[:tokens] % KV_BLOCK
    padding = _row(cache) - cache.head_dim
    k, v = (pad(torch.unflatten(x[:tokens], 1, (-1, cache.head_dim)), (0, padding)) for x in (k, v))
    if not cache.limit:
        _keys(cache)[:, block, :, offset] = _rounded(k, cache)
        _values(cache)[:, block, offset] = _rounded(v, cache).transpose(0, 1)
        return
    groups = torch.unflatten(pad(k, (0, -_row(cache) % KEY_GROUP)), 2, (-1, KEY_GROUP))
    codes, scales = _codes_of(groups, cache.limit)
    codes = torch.unflatten(codes.flatten(2)[..., : _row(cache)], 2, (-1, 2))
    _keys(cache)[:, block, :, offset] = codes.to(_TYPES[cache.kind])
    _key_scales(cache)[:, block, :, offset] = scales[..., 0]
    codes, scales = _codes_of(v, cache.limit)
    codes = torch.unflatten(codes, 2, (-1, CHUNK))
    _values(cache)[:, block, :, offset // 2, :, offset % 2] = codes.to(_TYPES[cache.kind])
    _value_scales(cache)[:, block, offset] = scales[..., 0].T


def key_floats(cache: KvCache, blocks: Tensor) -> Tensor:
    """blocks [G, B] -> float32 [kv_heads, G, D, P]."""
    return _keys(cache)[:, blocks].float().permute(0, 1, 3, 2, 4).flatten(3)


def value_floats(cache: KvCache, blocks: Tensor) -> Tensor:
    """blocks [G, B] -> float32 [kv_heads, G, P, D]."""
    return _values(cache)[:, blocks].float().flatten(2, 3)


def key_codes(cache: KvCache, blocks: Tensor) -> Tensor:
    """blocks [G, B] -> float64 [kv_heads, G, D, P]."""
    pairs = _keys(cache)[:, blocks].double()  # [kv_heads, G, B, D / 2, 16, 2]
    return pairs.permute(0, 1, 3, 5, 2, 4).flatten(4).flatten(2, 3)


def key_scales(cache: KvCache, blocks: Tensor) -> Tensor:
    """blocks [G, B] -> float32 [kv_heads, G, groups of 32, P]."""
    return _key_scales(cache).view(torch.bfloat16)[:, blocks].float().transpose(2, 3).flatten(3)


def value_codes(cache: KvCache, blocks: Tensor) -> Tensor:
    """blocks [G, B] -> float64 [kv_heads, G, B, 16, D]."""
    pairs = _values(cache)[:, blocks].double()  # [kv_heads, G, B, D / 16, 8, 16, 2]
    return pairs.permute(0, 1, 2, 4, 6, 3, 5).flatten(5).flatten(3, 4)


def value_scales(cache: KvCache, blocks: Tensor) -> Tensor:
    """blocks [G, B] -> float32 [kv_heads, G, P]."""
    return _value_scales(cache).view(torch.bfloat16)[:, blocks].float().flatten(2)


def _row(cache: KvCache) -> int:
    return -(-cache.head_dim // CHUNK) * CHUNK


def _plane(cache: KvCache, start: int, nbytes: int, kind: torch.dtype) -> Tensor:
    """Bytes of all parts as numbers: a view [kv_heads, blocks, numbers]."""
    return cache.memory[..., start : start + nbytes].view(kind)


def _keys(cache: KvCache) -> Tensor:
    """Floats [kv_heads, blocks, D, 16], or codes [kv_heads, blocks, D / 2, 16, 2]."""
    kind = _TYPES[cache.kind]
    plane = _plane(cache, 0, _row(cache) * KV_BLOCK * kind.itemsize, kind)
    return torch.unflatten(plane, 2, (-1, KV_BLOCK, 2) if cache.limit else (-1, KV_BLOCK))


def _values(cache: KvCache) -> Tensor:
    """Floats [kv_heads, blocks, 16, D], or codes [kv_heads, blocks, D / 16, 8, 16, 2]."""
    kind = _TYPES[cache.kind]
    plane = _plane(cache, cache.value_at, _row(cache) * KV_BLOCK * kind.itemsize, kind)
    return torch.unflatten(plane, 2, (-1, KV_BLOCK // 2, CHUNK, 2) if cache.limit else (KV_BLOCK, -1))


def _key_scales(cache: KvCache) -> Tensor:
    """The bits of bfloat16 [kv_heads, blocks, groups of 32, 16]."""
    groups = -(-_row(cache) // KEY_GROUP)
    start = _row(cache) * KV_BLOCK * _TYPES[cache.kind].itemsize
    return torch.unflatten(_plane(cache, start, groups * KV_BLOCK * 2, torch.int16), 2, (-1, KV_BLOCK))


def _value_scales(cache: KvCache) -> Tensor:
    """The bits of bfloat16 [kv_heads, blocks, 16]."""
    start = cache.value_at + _row(cache) * KV_BLOCK * _TYPES[cache.kind].itemsize
    return _plane(cache, start, KV_BLOCK * 2, torch.int16)


def _rounded(x: Tensor, cache: KvCache) -> Tensor:
    """To the nearest number of the cache's type, ties to even. A NaN keeps its sign and its upper bits in bfloat16."""
    rounded = x.to(_TYPES[cache.kind])
    if cache.kind != "bf16":
        return rounded
    quiet = (x.view(torch.int32) >> 16 | 0x40).to(torch.int16).view(torch.bfloat16)
    return torch.where(torch.isnan(x), quiet, rounded)


def _codes_of(x: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Groups x [..., n] -> codes float64 [..., n], and the bits of their scales int16 [..., 1]: bfloat16, rounded up.

    A group with a NaN or an infinity has the scale NaN, and codes of zero.
    """
    largest = x.abs().amax(dim=-1, keepdim=True)
    bits = (largest / torch.full_like(largest, limit)).view(torch.int32) + 0xFFFF & -0x10000
    is_tiny, is_finite = largest < SMALLEST, torch.isfinite(largest)
    inverse = torch.where(is_finite & ~is_tiny, 1.0 / bits.view(torch.float32), 0.0)
    codes = torch.round(x.double() * inverse.double())  # the product is exact: rounded once
    bits = torch.where(is_finite, torch.where(is_tiny, 0, bits), 0x7FC00000)
    return torch.where(is_finite, codes, 0.0), (bits >> 16).to(torch.int16)
