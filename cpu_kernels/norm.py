"""RMS norm, and activations as the records of `layout` that kernels multiply: "q8" and "bf16"."""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from .bfloat import store_span
from .claim import claim
from .descriptor import slots
from .jit import kernel
from .layout import SPAN, SUMS, padded
from .memory import float_from_bits, row_number
from .simd import Emit, Value, f32, f32x16, i8, i16, i32, i32x16, micro_kernel

QUANTISE_FIELDS = ("x", "x_stride", "n", "count_slot", "record", "record_stride")
RMS_NORM_FIELDS = (*QUANTISE_FIELDS, "weight", "eps", "rows", "plain", "plain_stride", "bfloat", "bfloat_stride")
(
    X, X_STRIDE, N, COUNT_SLOT, RECORD, RECORD_STRIDE, WEIGHT, EPS, ROWS, PLAIN, PLAIN_STRIDE, BFLOAT, BFLOAT_STRIDE,
) = slots(RMS_NORM_FIELDS)  # fmt: skip
_MAGIC, _MAGIC_BITS = 1.5 * 2.0**23, 0x4B400000  # as a float32
SMALLEST = 2.0**-100  # a span below it is all zero, so that 127 / amax stays finite

f32x4 = ir.VectorType(f32, 4)

_padded = kernel(padded)


Span = Sequence[Value]  # 64 values as four vectors


def _scaling(e: Emit, values: Span) -> tuple[Value, Value]:
    """The scale of 64 values and, in 16 lanes, its inverse."""
    bits = [e.b.bitcast(e.absolute(value), i32x16) for value in values]
    # magnitudes order like their bits, and so NaN wins and shows in the scale
    either = _larger(e, _larger(e, *bits[:2]), _larger(e, *bits[2:]))
    for width in (8, 4):
        either = _larger(e, e.shuffle(either, range(width)), e.shuffle(either, range(width, 2 * width)))
    for step in (2, 1):  # in all lanes, so that nothing leaves the vector registers
        either = _larger(e, either, e.shuffle(either, [lane ^ step for lane in range(4)]))
    largest = e.b.bitcast(either, f32x4)
    nothing, zero = e.b.fcmp_ordered("<", largest, e.constant(f32x4, SMALLEST)), e.zero(f32x4)
    inverse = e.b.select(nothing, zero, e.b.fdiv(e.constant(f32x4, 127.0), largest))
    scale = e.b.fdiv(e.b.select(nothing, zero, largest), e.constant(f32x4, 127.0))
    return e.b.extract_element(scale, ir.Constant(i32, 0)), e.shuffle(inverse, [0] * 16)


def _store_codes(e: Emit, values: Span, inverse: Value, codes: Value, sums: Sequence[Value]) -> None:
    """Codes of 64 values, and their sums per 32 and 16."""
    # a sum with it is rounded to an integer, which its low bits hold; of a NaN they hold anything
    magic = e.constant(f32x16, _MAGIC)
    whole = [e.b.bitcast(e.b.fadd(e.b.fmul(value, inverse), magic), i32x16) for value in values]
    if e.tier.vnni == 512:
        low, high = (_low_parts(e, whole[first], whole[first + 1], i16) for first in (0, 2))
        packed = _low_parts(e, low, high, i8)
        e.store(packed, codes)
        ones = e.constant(i32x16, 0x01010101)
        by_4 = e.call("llvm.x86.avx512.vpdpbusd.512", i32x16, [e.zero(i32x16), ones, e.b.bitcast(packed, i32x16)])
        by_16 = _sums_by_four(e, by_4)
    else:
        for part, value in enumerate(whole):
            e.store(e.b.trunc(value, ir.VectorType(i8, 16)), codes, 16 * part)
        offset = e.constant(i32x16, _MAGIC_BITS)
        by_16 = _sums_of_four(e, [e.b.sub(value, offset) for value in whole])
    by_32 = e.b.add(e.shuffle(by_16, (0, 2)), e.shuffle(by_16, (1, 3)))
    for value, target, factor in zip((by_32, by_16), sums, SUMS.values(), strict=True):
        e.store(e.b.mul(value, e.constant(value.type, factor)), target, 0, 4)


def _low_parts(e: Emit, a: Value, b: Value, part: ir.IntType) -> Value:
    """Of two vectors of 64 bytes, the lower half of each number, as a vector of `part`."""
    kind = ir.VectorType(part, 512 // part.width)
    halves = [e.b.bitcast(one, kind) for one in (a, b)]
    return e.b.shuffle_vector(*halves, ir.Constant(ir.VectorType(i32, kind.count), list(range(0, 2 * kind.count, 2))))


def _sums_by_four(e: Emit, vector: Value) -> Value:
    """The sums of each four lanes of an i32x16, as an i32x4."""
    for step in (2, 1):
        vector = e.b.add(vector, e.shuffle(vector, [lane ^ step for lane in range(16)]))
    return e.shuffle(vector, (0, 4, 8, 12))


def _sums_of_four(e: Emit, vectors: Span) -> Value:
    """The sums of four i32x16 as an i32x4: folded side by side, in half the steps of one after the other."""
    a, b, c, d = vectors
    return _sums_by_four(e, _fold_pair(e, _fold_pair(e, a, b, 8), _fold_pair(e, c, d, 8), 4))


def _fold_pair(e: Emit, a: Value, b: Value, width: int) -> Value:
    """Of the 32 lanes of a and b, every other block of `width` lanes added to the one before it."""
    even, odd = ([lane for lane in range(32) if lane // width % 2 == side] for side in (0, 1))
    low, high = (e.b.shuffle_vector(a, b, ir.Constant(i32x16, lanes)) for lanes in (even, odd))
    return e.b.add(low, high)


def _larger(e: Emit, a: Value, b: Value) -> Value:
    return e.b.select(e.b.icmp_signed(">", a, b), a, b)


def quantise_span(e: Emit, values: Span, record: Value, index: Value, columns: Value) -> None:
    """Quantise 64 values (four f32x16) into span `index` of a q8 record of padded `columns`."""
    quantise_spans(e, [values], record, index, columns)


def quantise_spans(e: Emit, spans: Sequence[Span], record: Value, first: Value, columns: Value) -> None:
    """The same for spans from `first` on: side by side, since each is a long chain of steps."""
    scales = e.at(record, columns)
    by_32 = e.at(scales, e.b.lshr(columns, e.const(4)))
    by_16 = e.at(by_32, e.b.lshr(columns, e.const(3)))
    scalings = [_scaling(e, values) for values in spans]
    for number, (values, (scale, inverse)) in enumerate(zip(spans, scalings, strict=True)):
        index = e.b.add(first, e.const(number))
        places = zip((scales, by_32, by_16), (4, 8, 16), strict=True)
        scale_at, *sums = (e.at(start, e.b.mul(index, e.const(size))) for start, size in places)
        e.store(scale, scale_at, 0, 4)
        _store_codes(e, values, inverse, e.at(record, e.b.mul(index, e.const(SPAN))), sums)


Load = Callable[[Value], Span]


def _each_span(
    e: Emit, n: Value, carried: Sequence[Value], body: Callable[[Value, Load, list[Value]], Sequence[Value]]
) -> list[Value]:
    """carried = body(index, load, carried) for each span of n values; load(row) gives its values, zeros beyond n."""
    whole, spans = e.b.lshr(n, e.const(6)), e.b.lshr(e.b.add(n, e.const(SPAN - 1)), e.const(6))

    def one(index: Value, carried: list[Value]) -> Sequence[Value]:
        at = e.b.mul(index, e.const(4 * SPAN))
        return body(index, lambda row: [e.load(f32x16, e.at(row, 64 * i), at) for i in range(4)], carried)

    def last(_: Value, carried: list[Value]) -> Sequence[Value]:
        at, left = e.b.mul(whole, e.const(4 * SPAN)), e.b.sub(n, e.b.mul(whole, e.const(SPAN)))
        counts = [e.b.sub(left, e.const(16 * i)) for i in range(4)]
        return body(
            whole, lambda row: [e.load_some(e.at(row, 64 * i), at, count) for i, count in enumerate(counts)], carried
        )

    return e.loop(e.b.sub(spans, whole), e.loop(whole, carried, one), last)


@micro_kernel()
def _quantise_spans(e: Emit, x: Value, n: Value, record: Value, columns: Value) -> None:
    row, target = e.pointer(x), e.pointer(record)

    def body(index: Value, load: Load, _: list[Value]) -> list[Value]:
        quantise_span(e, load(row), target, index, columns)
        return []

    _each_span(e, n, [], body)


@micro_kernel()
def _round_spans(e: Emit, x: Value, n: Value, record: Value) -> None:
    row, target = e.pointer(x), e.pointer(record)

    def body(index: Value, load: Load, _: list[Value]) -> list[Value]:
        store_span(e, load(row), target, index)
        return []

    _each_span(e, n, [], body)


@micro_kernel(types.float32)
def norm_factor(e: Emit, x: Value, n: Value, eps: Value) -> Value:
    """1 / sqrt(mean of squares + eps) of the n float32 at x."""
    row = e.pointer(x)

    def body(_: Value, load: Load, sums: list[Value]) -> list[Value]:
        return [e.fma(v, v, total) for v, total in zip(load(row), sums, strict=True)]

    a, b, c, d = _each_span(e, n, [e.zero()] * 4, body)
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

    def body(index: Value, load: Load, _: list[Value]) -> list[Value]:
        values = [e.b.fmul(e.b.fmul(value, scale), w) for value, w in zip(load(row), load(weights), strict=True)]
        with e.b.if_then(e.b.icmp_signed("!=", plain, zero)):
            offset = e.b.mul(index, e.const(4 * SPAN))
            for i, value in enumerate(values):
                e.store(value, e.at(rows_out, 64 * i), offset)
        with e.b.if_then(e.b.icmp_signed("!=", record, zero)):
            quantise_span(e, values, target, index, columns)
        with e.b.if_then(e.b.icmp_signed("!=", other, zero)):
            store_span(e, values, e.pointer(other), index)
        return []

    _each_span(e, n, [], body)


@kernel
def quantise_row(x: int, n: int, record: int) -> None:
    """Quantise the n float32 at address x into the q8 record at `record`."""
    _quantise_spans(x, n, record, _padded(n))


@kernel
def round_row(x: int, n: int, record: int) -> None:
    """Round the n float32 at address x into the bf16 record at `record`."""
    _round_spans(x, n, record)


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
        x = d[X] + row_number(d[ROWS], row) * d[X_STRIDE]
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
