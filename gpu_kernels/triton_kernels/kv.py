"""The paged cache of keys and values as kernels see it, and the store into it: byte for byte as on the CPU.

A part, of a head in a block of 16 positions, begins with its keys; values begin `value_at` behind. R: head_dim padded
to 16. Floats: keys [R][16], values [16][R]. Codes: keys [R / 2 pairs][16][2], then bfloat16 scales [R / 32][16]; values
[R / 16][8 pairs of positions][16][2], then bfloat16 scales [16].
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..kernels import KvCache, Sequences
from .arithmetic import INFINITY, MAGIC, SMALLEST, bfloat_bits, magnitude_bits
from .jit import EXACT, kernel

BLOCK = 16  # positions
_CODES = {"int16": torch.int16, "int8": torch.int8}
_PAIRS = {"int16": torch.int32, "int8": torch.int16}
_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.int16}  # of bfloat16 the bits


@dataclass(frozen=True, slots=True)
class CacheView:
    """numbers: the cache as its codes or floats; pairs: of codes, two at a time; halves: as bits of 16.

    row: R. part: numbers of a part; value_at: how many of them are before its values. bits: of a code, 0 of floats.
    """

    numbers: torch.Tensor
    pairs: torch.Tensor
    halves: torch.Tensor
    row: int
    part: int
    value_at: int
    bits: int

    def units(self) -> tuple[torch.Tensor, torch.Tensor, int, int, int, int]:
        """What attention reads: pairs of codes, or floats; halves; blocks; row; part and value_at in units of those."""
        together = 2 if self.bits else 1
        units = self.pairs if self.bits else self.numbers
        return units, self.halves, units.shape[1], self.row, self.part // together, self.value_at // together


def view(cache: KvCache) -> CacheView:
    """How kernels read a layer's cache. Raises ValueError for a kind that they do not know."""
    kinds = _CODES | _FLOATS
    if cache.kind not in kinds:
        raise ValueError(f"a cache of {cache.kind!r} is none that kernels know; choose one of {', '.join(kinds)}")
    numbers = cache.memory.view(kinds[cache.kind])
    size = numbers.element_size()
    return CacheView(
        numbers=numbers,
        pairs=cache.memory.view(_PAIRS.get(cache.kind, torch.int32)),
        halves=cache.memory.view(torch.int16),
        row=-(-cache.head_dim // 16) * 16,
        part=numbers.shape[2],
        value_at=cache.value_at // size,
        bits=8 * size if cache.limit else 0,
    )


@kernel
def _scales_of(largest, limit):
    """From the bits of largest magnitudes: those of scales as bfloat16, rounded up, and 1 / scale.

    What is below 2^-100 has the scale 0, what is not finite NaN.
    """
    magnitude = largest.to(tl.float32, bitcast=True)
    bits = (tl.div_rn(magnitude, limit).to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
    tiny, wild = magnitude < SMALLEST, largest >= INFINITY
    inverse = tl.div_rn(1.0, tl.where(tiny | wild, 1.0, bits.to(tl.float32, bitcast=True)))
    bits = tl.where(tiny, 0, tl.where(wild, 0x7FC00000, bits))
    return (bits >> 16).to(tl.int16), tl.where(tiny | wild, 0.0, inverse)


@kernel
def _codes(value, inverse, CODE: tl.constexpr):
    """round(value * inverse), rounded once; of a NaN 0."""
    whole = tl.fma(value, inverse, MAGIC)
    return tl.where(whole == whole, whole.to(tl.int32, bitcast=True), 0).to(CODE)


@kernel
def _store_codes(key, value, column, part, offset, sizes, BITS: tl.constexpr):
    """key and value [groups, 32] of one position. part: (its numbers, its halves); sizes: (row, value_at, limit)."""
    numbers, halves = part
    row, value_at, limit = sizes
    CODE: tl.constexpr = numbers.dtype.element_ty
    scale, inverse = _scales_of(tl.max(magnitude_bits(key), axis=1), limit)
    first = tl.min(column, axis=1)
    tl.store(halves + row * BITS + first // 2 + offset, scale, mask=first < row)
    at = (column // 2 * 16 + offset) * 2 + column % 2
    tl.store(numbers + at, _codes(key, inverse[:, None], CODE), mask=column < row)
    scale, inverse = _scales_of(tl.max(tl.max(magnitude_bits(value), axis=1), axis=0), limit)
    tl.store(halves + value_at * (BITS // 8) // 2 + row * BITS + offset, scale)
    at = ((column // 16 * 8 + offset // 2) * 16 + column % 16) * 2 + offset % 2
    tl.store(numbers + value_at + at, _codes(value, inverse, CODE), mask=column < row)


@kernel
def _store_floats(key, value, column, numbers, offset, row, value_at):
    if numbers.dtype.element_ty == tl.int16:
        key, value = bfloat_bits(key), bfloat_bits(value)
    else:
        key, value = key.to(numbers.dtype.element_ty), value.to(numbers.dtype.element_ty)
    tl.store(numbers + column * 16 + offset, key, mask=column < row)
    tl.store(numbers + value_at + offset * row + column, value, mask=column < row)


@kernel
def store_kernel(k, v, slots, count, cache, sizes, BITS: tl.constexpr, GROUPS: tl.constexpr):
    """k, v: (numbers, stride of a row); cache: (numbers, halves, blocks, numbers of a part); sizes: (head_dim, row,
    value_at, limit)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if token >= tl.load(count):
        return
    numbers, halves, blocks, part = cache
    head_dim, row, value_at, limit = sizes
    slot = tl.load(slots + token)
    at, offset = (head * blocks + slot // 16) * part, slot % 16
    column = tl.arange(0, GROUPS)[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = column < head_dim
    key = tl.load(k[0] + token * k[1] + head * head_dim + column, mask=inside, other=0.0)
    value = tl.load(v[0] + token * v[1] + head * head_dim + column, mask=inside, other=0.0)
    if BITS > 0:
        here = numbers + at, halves + at * (BITS // 8) // 2
        _store_codes(key, value, column, here, offset, (row, value_at, limit), BITS)
    else:
        _store_floats(key, value, column, numbers + at, offset, row, value_at)


def store(k: torch.Tensor, v: torch.Tensor, cache: KvCache, sequences: Sequences, count: torch.Tensor) -> None:
    """Write k and v [T, kv_heads * D] of the step's tokens to their slots."""
    seen = view(cache)
    kv_heads, blocks, _ = cache.memory.shape
    store_kernel[(len(k), kv_heads)](
        (k, k.stride(0)),
        (v, v.stride(0)),
        sequences.slots,
        count,
        (seen.numbers, seen.halves, blocks, seen.part),
        (cache.head_dim, seen.row, seen.value_at, float(cache.limit)),
        BITS=seen.bits,
        GROUPS=triton.next_power_of_2(-(-seen.row // 32)),
        num_warps=1,
        **EXACT,
    )
