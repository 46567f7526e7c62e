"""Activations as bfloat16: rounding to it, the "bf16 record" of `layout`, and products of pairs.

`vdpbf16ps` adds the product of a lane's odd element and then that of its even one, and rounds after each: like two
fused multiply-adds, which stand for it where it is missing. It takes numbers below 2^-126 as zeros; nothing else can
make a difference between the two.
"""

from collections.abc import Sequence

from .layout import SPAN
from .simd import Emit, Value, f32x16, i32x16


def dot_pairs(e: Emit, acc: Value, weights: Value, pair: Value) -> Value:
    """acc[lane] += the products of two bfloat16 in each lane of i32x16 `weights` and in the i32 `pair`."""
    pairs = e.splat(pair)
    if e.tier.bf16:
        return e.call("llvm.x86.avx512bf16.dpbf16ps.512", f32x16, [acc, weights, pairs])
    for half in (_odd, _even):
        acc = e.fma(half(e, weights), half(e, pairs), acc)
    return acc


def _odd(e: Emit, pairs: Value) -> Value:
    return e.b.bitcast(e.b.and_(pairs, e.constant(i32x16, 0xFFFF0000)), f32x16)


def _even(e: Emit, pairs: Value) -> Value:
    return e.b.bitcast(e.b.shl(pairs, e.constant(i32x16, 16)), f32x16)


def store_span(e: Emit, values: Sequence[Value], record: Value, index: Value) -> None:
    """64 values (four f32x16) to span `index` of a bf16 record."""
    at = e.b.mul(index, e.const(2 * SPAN))
    for part, value in enumerate(values):
        e.store(e.bfloat_bits(value), e.at(record, 32 * part), at, 2)
