"""Attention's parts: what a row adds up to over a segment of its context, and how parts become its output."""

from llvmlite import ir

from .attention_rows import MAXIMUM, PART_HEAD, UNSEEN
from .attention_softmax import exp2
from .bfloat import store_span
from .layout import SPAN
from .norm import quantise_spans
from .simd import Emit, Value, f32, f32x16, i32, micro_kernel


@micro_kernel()
def open_part(e: Emit, part: Value, chunks: Value) -> None:
    """Nothing seen yet."""
    base = e.pointer(part)
    e.store(e.zero(), base)
    e.store(ir.Constant(f32, UNSEEN), base, MAXIMUM, 4)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        e.store(e.zero(), e.at(base, PART_HEAD), e.b.shl(index, e.const(6)))
        return []

    e.loop(chunks, [], chunk)


@micro_kernel()
def merge_part(e: Emit, total: Value, part: Value, chunks: Value) -> None:
    """total += part, both brought to the larger maximum. With a total of nothing the part's bits stay."""
    to, source = e.pointer(total), e.pointer(part)
    tops = [e.splat(e.load(f32, pointer, MAXIMUM, 4)) for pointer in (to, source)]
    top = e.maximum(*tops)
    factors = [exp2(e, e.b.fsub(one, top)) for one in tops]

    def add(offset: Value | int) -> None:
        theirs = e.b.fmul(e.load(f32x16, source, offset), factors[1])
        e.store(e.fma(e.load(f32x16, to, offset), factors[0], theirs), to, offset)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        add(e.b.add(e.b.shl(index, e.const(6)), e.const(PART_HEAD)))
        return []

    add(0)
    e.loop(chunks, [], chunk)
    e.store(e.b.extract_element(top, ir.Constant(i32, 0)), to, MAXIMUM, 4)


def _share(e: Emit, total: Value) -> Value:
    """1 / the sum of the weights of a total, in all lanes."""
    return e.splat(e.b.fdiv(ir.Constant(f32, 1.0), e.sum(e.load(f32x16, total))))


@micro_kernel()
def finish_row(e: Emit, total: Value, out: Value, head_dim: Value) -> None:
    """out[head_dim] = accumulators / sum of weights."""
    source, target = e.pointer(total), e.pointer(out)
    share = _share(e, source)

    def chunk(index: Value, _: list[Value]) -> list[Value]:
        at = e.b.shl(index, e.const(6))
        left = e.b.sub(head_dim, e.b.shl(index, e.const(4)))
        e.store_some(e.b.fmul(e.load(f32x16, e.at(source, PART_HEAD), at), share), target, at, left)
        return []

    e.loop(e.b.lshr(e.b.add(head_dim, e.const(15)), e.const(4)), [], chunk)


def _spans(e: Emit, total: Value, share: Value, first: Value, count: int) -> list[list[Value]]:
    """The outputs of spans of a total's row, each four vectors."""
    here = e.at(e.at(total, PART_HEAD), e.b.mul(first, e.const(4 * SPAN)))
    vectors = [e.b.fmul(e.load(f32x16, here, 64 * part), share) for part in range(4 * count)]
    return [vectors[4 * span : 4 * span + 4] for span in range(count)]


@micro_kernel()
def finish_codes(e: Emit, total: Value, record: Value, first: Value, spans: Value, columns: Value) -> None:
    """The same to spans `first` .. of a q8 record of padded `columns`."""
    source, target = e.pointer(total), e.pointer(record)
    share, pairs = _share(e, source), e.b.lshr(spans, e.const(1))

    def quantise(index: Value, count: int) -> list[Value]:
        quantise_spans(e, _spans(e, source, share, index, count), target, e.b.add(first, index), columns)
        return []

    e.loop(pairs, [], lambda i, _: quantise(e.b.shl(i, e.const(1)), 2))
    e.loop(e.b.and_(spans, e.const(1)), [], lambda _, __: quantise(e.b.shl(pairs, e.const(1)), 1))


@micro_kernel()
def finish_bfloats(e: Emit, total: Value, record: Value, first: Value, spans: Value) -> None:
    """The same to spans `first` .. of a bf16 record."""
    source, target = e.pointer(total), e.pointer(record)
    share = _share(e, source)

    def span(index: Value, _: list[Value]) -> list[Value]:
        (values,) = _spans(e, source, share, index, 1)
        store_span(e, values, target, e.b.add(first, index))
        return []

    e.loop(spans, [], span)
