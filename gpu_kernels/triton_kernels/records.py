"""Activations as records: what products read, written by one program for some spans of 64 of a row."""

import triton.language as tl

from .arithmetic import bfloat_bits, quantise
from .jit import kernel


@kernel
def store_spans(values, rows, span, ok, out):
    """Store values [R, 64], of which each row is span `span` [R] of record `rows` [R], where ok [R]; out: as `product`
    takes them, whose None are left out."""
    codes, stride, scales, scales_stride, plain, plain_stride = out
    column = span[:, None] * 64 + tl.arange(0, 64)[None, :]
    if codes is not None:
        eights, scale = quantise(values)
        tl.store(codes + (rows * stride)[:, None] + column, eights, mask=ok[:, None])
        tl.store(scales + rows * scales_stride + span, scale, mask=ok)
    if plain is not None:
        if plain.dtype.element_ty == tl.int16:
            tl.store(plain + (rows * plain_stride)[:, None] + column, bfloat_bits(values), mask=ok[:, None])
        else:
            tl.store(plain + (rows * plain_stride)[:, None] + column, values, mask=ok[:, None])


@kernel
def to_record_kernel(x, stride, columns, out, count, SPANS: tl.constexpr):
    """Program (t, i): spans i * SPANS and so on of row t."""
    row = tl.program_id(0).to(tl.int64)
    if row >= tl.load(count):
        return
    span = tl.program_id(1) * SPANS + tl.arange(0, SPANS)
    column = span[:, None] * 64 + tl.arange(0, 64)[None, :]
    values = tl.load(x + row * stride + column, mask=column < columns, other=0.0)
    store_spans(values, row + 0 * span, span, 64 * span < columns, out)
