"""Writing a token's key and value of one head into its block of the cache (see `kv_layout`).

Two workers may write neighbouring positions at the same time, so nothing is read back and every store covers bytes of
one position only.
"""

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .jit import kernel
from .kv_layout import BF16, CHUNK, CODE_LIMIT, F16, F32, INT8, INT16, KEY_GROUP
from .layout import KV_BLOCK
from .simd import Emit, Value, f32, f32x16, i8, i16, i32, i32x16, micro_kernel

_SIZES = {F32: 4, F16: 2, BF16: 2}
_CODES = {INT16: (2, CODE_LIMIT), INT8: (1, 127)}
_INFINITY, _NAN = 0x7F800000, 0x7FC00000


def _stored(e: Emit, value: Value, kind: int) -> Value:
    """16 floats in the type of a kind."""
    return {F32: lambda: value, F16: lambda: e.half_bits(value), BF16: lambda: e.bfloat_bits(value)}[kind]()


def _scatter(e: Emit, vector: Value, target: Value, step: int) -> None:
    """Each lane of a vector to `target` + lane * step."""
    for lane in range(vector.type.count):
        element = e.b.extract_element(vector, ir.Constant(i32, lane))
        e.store(element, target, lane * step)


def _each_kind(e: Emit, kind: Value, kinds: Any, body: Callable[[int], None]) -> None:
    for number in kinds:
        with e.b.if_then(e.b.icmp_signed("==", kind, e.const(number))):
            body(number)


def _chunks(e: Emit, row: Value, head_dim: Value, body: Callable[[Value, Value], None]) -> None:
    """body(index, 16 floats) for each chunk of a row; zeros beyond its end."""

    def one(index: Value, _: list[Value]) -> list[Value]:
        left = e.b.sub(head_dim, e.b.shl(index, e.const(4)))
        body(index, e.load_some(row, e.b.shl(index, e.const(6)), left))
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(CHUNK - 1)), e.const(4)), [], one)


@micro_kernel()
def _key_floats(e: Emit, row: Value, target: Value, head_dim: Value, offset: Value, kind: Value) -> None:
    x, base = e.pointer(row), e.pointer(target)

    def write(number: int) -> None:
        size = _SIZES[number]
        here = e.at(base, e.b.mul(offset, e.const(size)))

        def chunk(index: Value, value: Value) -> None:
            first = e.at(here, e.b.mul(index, e.const(CHUNK * KV_BLOCK * size)))
            _scatter(e, _stored(e, value, number), first, KV_BLOCK * size)

        _chunks(e, x, head_dim, chunk)

    _each_kind(e, kind, _SIZES, write)


@micro_kernel()
def _value_floats(e: Emit, row: Value, target: Value, head_dim: Value, offset: Value, kind: Value) -> None:
    x, base = e.pointer(row), e.pointer(target)
    padded = e.b.and_(e.b.add(head_dim, e.const(CHUNK - 1)), e.const(-CHUNK))

    def write(number: int) -> None:
        size = _SIZES[number]
        here = e.at(base, e.b.mul(e.b.mul(offset, padded), e.const(size)))

        def chunk(index: Value, value: Value) -> None:
            e.store(_stored(e, value, number), here, e.b.mul(index, e.const(CHUNK * size)))

        _chunks(e, x, head_dim, chunk)

    _each_kind(e, kind, _SIZES, write)


def largest_bits(e: Emit, *vectors: Value) -> Value:
    """The largest magnitude of vectors of 16 floats, as bits of a positive float; those of a NaN exceed all others."""
    ones = [magnitude_bits(e, vector) for vector in vectors]
    return e.reduce(functools.reduce(lambda a, b: larger(e, a, b), ones), lambda a, b: larger(e, a, b))


def magnitude_bits(e: Emit, vector: Value) -> Value:
    """The bits of the magnitudes of 16 floats, which order like them; those of a NaN exceed all others."""
    return e.b.and_(e.b.bitcast(vector, i32x16), e.constant(i32x16, 0x7FFFFFFF))


def larger(e: Emit, a: Value, b: Value) -> Value:
    """The larger of integers."""
    return e.b.select(e.b.icmp_signed(">", a, b), a, b)


def codes_at(e: Emit, value: Value, inverse: Value) -> Value:
    """round(value * inverse), rounded once, in the low 16 bits of each lane; of a NaN anything.

    A sum with 1.5 * 2^23 has no bits behind the point.
    """
    return e.b.bitcast(e.fma(value, inverse, e.constant(f32x16, 1.5 * 2.0**23)), i32x16)


def _scale_of(e: Emit, largest: Value, limit: int) -> tuple[Value, Value]:
    """From the bits of a group's largest magnitude: the bits of its scale as bfloat16, rounded up, and 1 / scale."""
    magnitude = e.b.bitcast(largest, f32)
    rough = e.b.bitcast(e.b.fdiv(magnitude, ir.Constant(f32, float(limit))), i32)
    bits = e.b.and_(e.b.add(rough, ir.Constant(i32, 0xFFFF)), ir.Constant(i32, -0x10000))
    scale = e.b.bitcast(bits, f32)
    tiny = e.b.fcmp_ordered("<", magnitude, ir.Constant(f32, 2.0**-100))
    wild = e.b.icmp_signed(">=", largest, ir.Constant(i32, _INFINITY))
    inverse = e.b.fdiv(ir.Constant(f32, 1.0), scale)
    inverse = e.b.select(e.b.or_(tiny, wild), ir.Constant(f32, 0.0), inverse)
    bits = e.b.select(tiny, ir.Constant(i32, 0), e.b.select(wild, ir.Constant(i32, _NAN), bits))
    return e.b.trunc(e.b.lshr(bits, ir.Constant(i32, 16)), i16), e.splat(inverse)


@micro_kernel()
def _key_codes(e: Emit, row: Value, target: Value, head_dim: Value, offset: Value, kind: Value) -> None:
    x, base = e.pointer(row), e.pointer(target)
    chunks = e.b.lshr(e.b.add(head_dim, e.const(CHUNK - 1)), e.const(4))

    def write(number: int) -> None:
        size, limit = _CODES[number]
        pair = ir.VectorType(ir.IntType(16 * size), CHUNK // 2)
        scales = e.at(base, e.b.mul(chunks, e.const(CHUNK * KV_BLOCK * size)))

        def group(index: Value, _: list[Value]) -> list[Value]:
            left = e.b.sub(head_dim, e.b.shl(index, e.const(5)))
            at = e.b.shl(index, e.const(7))
            parts = e.load_some(x, at, left), e.load_some(e.at(x, 64), at, e.b.sub(left, e.const(CHUNK)))
            scale, inverse = _scale_of(e, largest_bits(e, *parts), limit)
            e.store(scale, scales, e.b.add(e.b.shl(index, e.const(5)), e.b.shl(offset, e.const(1))), 2)
            here = e.at(base, e.b.mul(index, e.const(KEY_GROUP * KV_BLOCK * size)))
            here = e.at(here, e.b.mul(offset, e.const(2 * size)))

            def chunk(part: Value, first: Value) -> None:
                codes = e.b.trunc(codes_at(e, part, inverse), ir.VectorType(ir.IntType(8 * size), CHUNK))
                _scatter(e, e.b.bitcast(codes, pair), first, 2 * KV_BLOCK * size)

            chunk(parts[0], here)
            with e.b.if_then(e.b.icmp_signed(">", left, e.const(CHUNK))):
                chunk(parts[1], e.at(here, CHUNK * KV_BLOCK * size))
            return []

        e.loop(e.b.lshr(e.b.add(chunks, e.const(1)), e.const(1)), [], group)

    _each_kind(e, kind, _CODES, write)


@micro_kernel()
def _value_codes(e: Emit, row: Value, target: Value, head_dim: Value, offset: Value, kind: Value) -> None:
    x, base = e.pointer(row), e.pointer(target)
    chunks = e.b.lshr(e.b.add(head_dim, e.const(CHUNK - 1)), e.const(4))

    def magnitude(index: Value, largest: list[Value]) -> list[Value]:
        left = e.b.sub(head_dim, e.b.shl(index, e.const(4)))
        return [larger(e, largest[0], largest_bits(e, e.load_some(x, e.b.shl(index, e.const(6)), left)))]

    def write(number: int) -> None:
        size, limit = _CODES[number]
        (largest,) = e.loop(chunks, [ir.Constant(i32, 0)], magnitude)
        scale, inverse = _scale_of(e, largest, limit)
        scales = e.at(base, e.b.mul(chunks, e.const(CHUNK * KV_BLOCK * size)))
        e.store(scale, scales, e.b.shl(offset, e.const(1)), 2)
        pair = e.b.mul(e.b.lshr(offset, e.const(1)), e.const(2 * CHUNK * size))
        here = e.at(base, e.b.add(pair, e.b.mul(e.b.and_(offset, e.const(1)), e.const(size))))

        def chunk(index: Value, value: Value) -> None:
            codes = e.b.trunc(codes_at(e, value, inverse), ir.VectorType(i16 if size == 2 else i8, CHUNK))
            _scatter(e, codes, e.at(here, e.b.mul(index, e.const(CHUNK * KV_BLOCK * size))), 2 * size)

        _chunks(e, x, head_dim, chunk)

    _each_kind(e, kind, _CODES, write)


@kernel
def write_key(row: int, target: int, head_dim: int, offset: int, kind: int) -> None:
    """The float32 [head_dim] at `row` as the key of position `offset` of the block whose keys lie at `target`."""
    if kind >= INT16:
        _key_codes(row, target, head_dim, offset, kind)
    else:
        _key_floats(row, target, head_dim, offset, kind)


@kernel
def write_value(row: int, target: int, head_dim: int, offset: int, kind: int) -> None:
    """The same for a value."""
    if kind >= INT16:
        _value_codes(row, target, head_dim, offset, kind)
    else:
        _value_floats(row, target, head_dim, offset, kind)
