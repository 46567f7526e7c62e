"""RMS norm and the int8 quantisation of activations (the "q8 record" of `layout`)."""

from typing import Any

from llvmlite import ir
from numba import types

from .descriptor import COUNTER, slots
from .jit import kernel
from .layout import GROUP, padded
from .memory import atomic_add, float_from_bits, read_i64
from .simd import Emit, Value, f32, f32x16, i8, i32x16, micro_kernel

QUANTISE_FIELDS = ("x", "x_stride", "n", "count_slot", "record", "record_stride")
RMS_NORM_FIELDS = (*QUANTISE_FIELDS, "weight", "eps", "rows", "plain", "plain_stride")
(X, X_STRIDE, N, COUNT_SLOT, RECORD, RECORD_STRIDE, WEIGHT, EPS, ROWS, PLAIN, PLAIN_STRIDE) = slots(RMS_NORM_FIELDS)
SMALLEST = 2.0**-100  # a group below it is all zero, so that 127 / amax stays finite

_padded = kernel(padded)


def _quantise_group(e: Emit, low: Value, high: Value, codes: Value, scale: Value, total: Value) -> None:
    """Quantise 32 values (two f32x16) into 32 codes, one scale and one sum of codes; three i8 pointers to write to."""
    bits = [e.b.bitcast(e.absolute(value), i32x16) for value in (low, high)]
    # magnitudes order like their bits, and so NaN wins and shows in the scale
    largest = e.b.bitcast(e.reduce(_larger(e, *bits), lambda a, b: _larger(e, a, b)), f32)
    nothing = e.b.fcmp_ordered("<", largest, ir.Constant(f32, SMALLEST))
    largest = e.b.select(nothing, ir.Constant(f32, 0.0), largest)
    inverse = e.b.select(nothing, ir.Constant(f32, 0.0), e.b.fdiv(ir.Constant(f32, 127.0), largest))
    e.store(e.b.fdiv(largest, ir.Constant(f32, 127.0)), scale, 0, 4)
    whole = [_codes(e, value, e.splat(inverse)) for value in (low, high)]
    for part, value in enumerate(whole):
        e.store(e.b.trunc(value, ir.VectorType(i8, 16)), codes, 16 * part)
    e.store(e.reduce(e.b.add(*whole), e.b.add), total, 0, 4)


def _larger(e: Emit, a: Value, b: Value) -> Value:
    return e.b.select(e.b.icmp_signed(">", a, b), a, b)


def _codes(e: Emit, value: Value, inverse: Value) -> Value:
    scaled = e.round(e.b.fmul(value, inverse))
    # clamping changes NaN only, whose conversion is undefined
    scaled = e.minimum(e.maximum(scaled, e.constant(f32x16, -127.0)), e.constant(f32x16, 127.0))
    return e.b.fptosi(scaled, i32x16)


def _quantise_at(e: Emit, low: Value, high: Value, record: Value, index: Value, columns: Value) -> None:
    """Quantise into group `index` of a record of padded `columns`."""
    scales = e.at(record, columns)
    sums = e.at(scales, e.b.lshr(columns, e.const(3)))
    at = e.b.shl(index, e.const(2))
    _quantise_group(e, low, high, e.at(record, e.b.mul(index, e.const(GROUP))), e.at(scales, at), e.at(sums, at))


def _load_group(e: Emit, row: Value, index: Value, count: Value) -> tuple[Value, Value]:
    """32 values of a row of `count`, zeros beyond it."""
    start = e.b.shl(index, e.const(5))
    left = e.b.sub(count, start)
    offset = e.b.shl(start, e.const(2))
    low = e.load_some(row, offset, left)
    return low, e.load_some(e.at(row, 64), offset, e.b.sub(left, e.const(16)))


@micro_kernel()
def quantise_span32(e: Emit, values: Value, record: Value, index: Value, columns: Value) -> None:
    """Quantise the 32 float32 at `values` into group `index` of a q8 record of padded `columns`."""
    source = e.pointer(values)
    _quantise_at(e, e.load(f32x16, source), e.load(f32x16, source, 64), e.pointer(record), index, columns)


@micro_kernel()
def _quantise_groups(e: Emit, x: Value, n: Value, record: Value, columns: Value) -> None:
    row, target = e.pointer(x), e.pointer(record)

    def body(index: Value, _: list[Value]) -> list[Value]:
        _quantise_at(e, *_load_group(e, row, index, n), target, index, columns)
        return []

    e.loop(e.b.lshr(columns, e.const(5)), [], body)


@micro_kernel(types.float32)
def norm_factor(e: Emit, x: Value, n: Value, eps: Value) -> Value:
    """1 / sqrt(mean of squares + eps) of the n float32 at x."""
    row = e.pointer(x)

    def body(index: Value, sums: list[Value]) -> list[Value]:
        return [e.fma(v, v, total) for v, total in zip(_load_group(e, row, index, n), sums, strict=True)]

    groups = e.b.lshr(e.b.add(n, e.const(GROUP - 1)), e.const(5))
    low, high = e.loop(groups, [e.zero(), e.zero()], body)
    mean = e.b.fdiv(e.sum(e.b.fadd(low, high)), e.b.sitofp(n, f32))
    return e.b.fdiv(ir.Constant(f32, 1.0), e.square_root(e.b.fadd(mean, e.b.fptrunc(eps, f32))))


@micro_kernel()
def _scale_groups(
    e: Emit, x: Value, weight: Value, factor: Value, n: Value, columns: Value, plain: Value, record: Value
) -> None:
    """x * factor * weight to a plain row and to a q8 record, where their addresses are not 0."""
    row, weights, rows_out, target = e.pointer(x), e.pointer(weight), e.pointer(plain), e.pointer(record)
    scale, zero = e.splat(factor), e.const(0)

    def body(index: Value, _: list[Value]) -> list[Value]:
        pairs = zip(_load_group(e, row, index, n), _load_group(e, weights, index, n), strict=True)
        low, high = (e.b.fmul(e.b.fmul(value, scale), w) for value, w in pairs)
        with e.b.if_then(e.b.icmp_signed("!=", plain, zero)):
            offset = e.b.shl(index, e.const(7))
            e.store(low, rows_out, offset)
            e.store(high, e.at(rows_out, 64), offset)
        with e.b.if_then(e.b.icmp_signed("!=", record, zero)):
            _quantise_at(e, low, high, target, index, columns)
        return []

    e.loop(e.b.lshr(columns, e.const(5)), [], body)


@kernel
def quantise_row(x: int, n: int, record: int) -> None:
    """Quantise the n float32 at address x into the q8 record at `record`."""
    _quantise_groups(x, n, record, _padded(n))


@kernel
def rms_norm(d: Any, step: Any, worker: int) -> None:
    """y = x / sqrt(mean(x^2) + eps) * weight, to plain rows (zero padded) and/or q8 records. Items: rows.

    rows: 0, or address of the numbers of the rows of x to take.
    """
    count, n = step[d[COUNT_SLOT]], d[N]
    while True:
        row = atomic_add(d[COUNTER], 1)
        if row >= count:
            break
        source = row if d[ROWS] == 0 else read_i64(d[ROWS] + 8 * row)
        x = d[X] + source * d[X_STRIDE]
        plain = 0 if d[PLAIN] == 0 else d[PLAIN] + row * d[PLAIN_STRIDE]
        record = 0 if d[RECORD] == 0 else d[RECORD] + row * d[RECORD_STRIDE]
        factor = norm_factor(x, n, float_from_bits(d[EPS]))
        _scale_groups(x, d[WEIGHT], factor, n, _padded(n), plain, record)


@kernel
def quantise(d: Any, step: Any, worker: int) -> None:
    """Rows of n float32 to q8 records. Items: rows."""
    count = step[d[COUNT_SLOT]]
    while True:
        row = atomic_add(d[COUNTER], 1)
        if row >= count:
            break
        quantise_row(d[X] + row * d[X_STRIDE], d[N], d[RECORD] + row * d[RECORD_STRIDE])
