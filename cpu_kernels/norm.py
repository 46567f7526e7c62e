"""RMS norm, and activations as the records of `layout` that kernels multiply: "q8" and "bf16"."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from .bfloat import store_span
from .claim import claim
from .descriptor import slots
from .jit import kernel
from .layout import SPAN, SUMS, padded
from .memory import float_from_bits, read_i64
from .simd import Emit, Value, f32, f32x16, i8, i32x16, micro_kernel

QUANTISE_FIELDS = ("x", "x_stride", "n", "count_slot", "record", "record_stride")
RMS_NORM_FIELDS = (*QUANTISE_FIELDS, "weight", "eps", "rows", "plain", "plain_stride", "bfloat", "bfloat_stride")
(
    X, X_STRIDE, N, COUNT_SLOT, RECORD, RECORD_STRIDE, WEIGHT, EPS, ROWS, PLAIN, PLAIN_STRIDE, BFLOAT, BFLOAT_STRIDE,
) = slots(RMS_NORM_FIELDS)  # fmt: skip
SMALLEST = 2.0**-100  # a span below it is all zero, so that 127 / amax stays finite

_padded = kernel(padded)


Span = Sequence[Value]  # 64 values as four vectors


def _quantise(e: Emit, values: Span, codes: Value, scale: Value, sums: Sequence[Value]) -> None:
    """Quantise 64 values into 64 codes, their scale, and their sums per 32 and 16; i8 pointers to write to."""
    bits = [e.b.bitcast(e.absolute(value), i32x16) for value in values]
    # magnitudes order like their bits, and so NaN wins and shows in the scale
    either = _larger(e, _larger(e, *bits[:2]), _larger(e, *bits[2:]))
    largest = e.b.bitcast(e.reduce(either, lambda a, b: _larger(e, a, b)), f32)
    nothing = e.b.fcmp_ordered("<", largest, ir.Constant(f32, SMALLEST))
    largest = e.b.select(nothing, ir.Constant(f32, 0.0), largest)
    inverse = e.b.select(nothing, ir.Constant(f32, 0.0), e.b.fdiv(ir.Constant(f32, 127.0), largest))
    e.store(e.b.fdiv(largest, ir.Constant(f32, 127.0)), scale, 0, 4)
    whole = [_codes(e, value, e.splat(inverse)) for value in values]
    for part, value in enumerate(whole):
        e.store(e.b.trunc(value, ir.VectorType(i8, 16)), codes, 16 * part)
    by_16 = _sums_of_four(e, whole)
    by_32 = e.b.add(e.shuffle(by_16, (0, 2)), e.shuffle(by_16, (1, 3)))
    for value, target, factor in zip((by_32, by_16), sums, SUMS.values(), strict=True):
        e.store(e.b.mul(value, e.constant(value.type, factor)), target, 0, 4)


def _sums_of_four(e: Emit, vectors: Span) -> Value:
    """The sums of four i32x16 as an i32x4: folded side by side, in half the steps of one after the other."""
    a, b, c, d = vectors
    whole = _fold_pair(e, _fold_pair(e, a, b, 8), _fold_pair(e, c, d, 8), 4)
    for step in (2, 1):
        whole = e.b.add(whole, e.shuffle(whole, [lane ^ step for lane in range(16)]))
    return e.shuffle(whole, (0, 4, 8, 12))


def _fold_pair(e: Emit, a: Value, b: Value, width: int) -> Value:
    """Of the 32 lanes of a and b, every other block of `width` lanes added to the one before it."""
    even, odd = ([lane for lane in range(32) if lane // width % 2 == side] for side in (0, 1))
    low, high = (e.b.shuffle_vector(a, b, ir.Constant(i32x16, lanes)) for lanes in (even, odd))
    return e.b.add(low, high)


def _larger(e: Emit, a: Value, b: Value) -> Value:
    return e.b.select(e.b.icmp_signed(">", a, b), a, b)


def _codes(e: Emit, value: Value, inverse: Value) -> Value:
    scaled = e.round(e.b.fmul(value, inverse))
    # clamping changes NaN only, whose conversion is undefined
    scaled = e.minimum(e.maximum(scaled, e.constant(f32x16, -127.0)), e.constant(f32x16, 127.0))
    return e.b.fptosi(scaled, i32x16)


def quantise_span(e: Emit, values: Span, record: Value, index: Value, columns: Value) -> None:
    """Quantise 64 values (four f32x16) into span `index` of a q8 record of padded `columns`."""
    scales = e.at(record, columns)
    by_32 = e.at(scales, e.b.lshr(columns, e.const(4)))
    by_16 = e.at(by_32, e.b.lshr(columns, e.const(3)))
    places = zip((scales, by_32, by_16), (4, 8, 16), strict=True)
    scale, *sums = (e.at(start, e.b.mul(index, e.const(size))) for start, size in places)
    _quantise(e, values, e.at(record, e.b.mul(index, e.const(SPAN))), scale, sums)


def _load_span(e: Emit, row: Value, index: Value, count: Value) -> list[Value]:
    """64 values of a row of `count`, zeros beyond it."""
    start = e.b.mul(index, e.const(SPAN))
    left, offset = e.b.sub(count, start), e.b.mul(start, e.const(4))
    return [e.load_some(e.at(row, 64 * i), offset, e.b.sub(left, e.const(16 * i))) for i in range(4)]


@micro_kernel()
def _quantise_spans(e: Emit, x: Value, n: Value, record: Value, columns: Value) -> None:
    row, target = e.pointer(x), e.pointer(record)

    def body(index: Value, _: list[Value]) -> list[Value]:
        quantise_span(e, _load_span(e, row, index, n), target, index, columns)
        return []

    e.loop(e.b.udiv(columns, e.const(SPAN)), [], body)


@micro_kernel()
def _round_spans(e: Emit, x: Value, n: Value, record: Value, columns: Value) -> None:
    row, target = e.pointer(x), e.pointer(record)

    def body(index: Value, _: list[Value]) -> list[Value]:
        store_span(e, _load_span(e, row, index, n), target, index)
        return []

    e.loop(e.b.udiv(columns, e.const(SPAN)), [], body)


@micro_kernel(types.float32)
def norm_factor(e: Emit, x: Value, n: Value, eps: Value) -> Value:
    """1 / sqrt(mean of squares + eps) of the n float32 at x."""
    row = e.pointer(x)

    def body(index: Value, sums: list[Value]) -> list[Value]:
        return [e.fma(v, v, total) for v, total in zip(_load_span(e, row, index, n), sums, strict=True)]

    spans = e.b.udiv(e.b.add(n, e.const(SPAN - 1)), e.const(SPAN))
    a, b, c, d = e.loop(spans, [e.zero()] * 4, body)
    total = e.sum(e.b.fadd(e.b.fadd(a, b), e.b.fadd(c, d)))
    mean = e.b.fdiv(total, e.b.sitofp(n, f32))
    return e.b.fdiv(ir.Constant(f32, 1.0), e.square_root(e.b.fadd(mean, e.b.fptrunc(eps, f32))))


@micro_kernel()
def _scale_spans(
    e: Emit, x: Value, weight: Value, factor: Value, n: Value, columns: Value, plain: Value, record: Value, other: Value
) -> None:
    """x * factor * weight to a plain row, a q8 and (other) a bf16 record, where their addresses are not 0."""
    row, weights, rows_out, target = e.pointer(x), e.pointer(weight), e.pointer(plain), e.pointer(record)
    scale, zero = e.splat(factor), e.const(0)

    def body(index: Value, _: list[Value]) -> list[Value]:
        pairs = zip(_load_span(e, row, index, n), _load_span(e, weights, index, n), strict=True)
        values = [e.b.fmul(e.b.fmul(value, scale), w) for value, w in pairs]
        with e.b.if_then(e.b.icmp_signed("!=", plain, zero)):
            offset = e.b.mul(index, e.const(4 * SPAN))
            for i, value in enumerate(values):
                e.store(value, e.at(rows_out, 64 * i), offset)
        with e.b.if_then(e.b.icmp_signed("!=", record, zero)):
            quantise_span(e, values, target, index, columns)
        with e.b.if_then(e.b.icmp_signed("!=", other, zero)):
            store_span(e, values, e.pointer(other), index)
        return []

    e.loop(e.b.udiv(columns, e.const(SPAN)), [], body)


@kernel
def quantise_row(x: int, n: int, record: int) -> None:
    """Quantise the n float32 at address x into the q8 record at `record`."""
    _quantise_spans(x, n, record, _padded(n))


@kernel
def round_row(x: int, n: int, record: int) -> None:
    """Round the n float32 at address x into the bf16 record at `record`."""
    _round_spans(x, n, record, _padded(n))


@kernel
def rms_norm(d: Any, step: Any, worker: int) -> None:
    """y = x / sqrt(mean(x^2) + eps) * weight, to plain rows (zero padded), q8 and bf16 records. Items: rows.

    rows: 0, or address of the numbers of the rows of x to take.
    """
    count, n = step[d[COUNT_SLOT]], d[N]
    while True:
        row = claim(d, step, worker, count)
        if row < 0:
            break
        source = row if d[ROWS] == 0 else read_i64(d[ROWS] + 8 * row)
        x = d[X] + source * d[X_STRIDE]
        plain = 0 if d[PLAIN] == 0 else d[PLAIN] + row * d[PLAIN_STRIDE]
        record = 0 if d[RECORD] == 0 else d[RECORD] + row * d[RECORD_STRIDE]
        bfloat = 0 if d[BFLOAT] == 0 else d[BFLOAT] + row * d[BFLOAT_STRIDE]
        factor = norm_factor(x, n, float_from_bits(d[EPS]))
        _scale_spans(x, d[WEIGHT], factor, n, _padded(n), plain, record, bfloat)


@kernel
def quantise(d: Any, step: Any, worker: int) -> None:
    """Rows of n float32 to q8 records. Items: rows."""
    count = step[d[COUNT_SLOT]]
    while True:
        row = claim(d, step, worker, count)
        if row < 0:
            break
        quantise_row(d[X] + row * d[X_STRIDE], d[N], d[RECORD] + row * d[RECORD_STRIDE])


@kernel
def round_rows(d: Any, step: Any, worker: int) -> None:
    """Rows of n float32 to bf16 records. Items: rows."""
    count = step[d[COUNT_SLOT]]
    while True:
        row = claim(d, step, worker, count)
        if row < 0:
            break
        round_row(d[X] + row * d[X_STRIDE], d[N], d[RECORD] + row * d[RECORD_STRIDE])
