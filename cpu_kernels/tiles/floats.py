"""The product of a span of float weights with float32 activations: one fused multiply-add per column, in order."""

from collections.abc import Callable

from ..layout import KINDS, SPAN
from ..simd import Emit, Value, f32, f32x16

SpanBody = Callable[[Emit, Value, list[Value], Value, Value, list[Value]], list[Value]]


def float_span(kind: str) -> SpanBody:
    """64 columns of float weights times float32 activations."""
    step = KINDS[kind].span_bytes // SPAN

    def column(e: Emit, tile: Value, inputs: list[Value], totals: list[Value], c: int) -> list[Value]:
        load = {"f32": lambda p, o: e.load(f32x16, p, o, 4), "f16": e.load_half, "bf16": e.load_bfloat}[kind]
        rows = load(tile, c * step)
        return [e.fma(rows, e.splat(e.load(f32, x, 4 * c, 4)), t) for x, t in zip(inputs, totals, strict=True)]

    def body(e: Emit, tile: Value, records: list[Value], s: Value, _: Value, totals: list[Value]) -> list[Value]:
        def eight(i: Value, carried: list[Value]) -> list[Value]:
            here = e.at(tile, e.b.mul(i, e.const(8 * step)))
            first = e.b.add(e.b.mul(s, e.const(4 * SPAN)), e.b.mul(i, e.const(32)))
            inputs = [e.at(x, first) for x in records]
            for c in range(8):
                carried = column(e, here, inputs, carried, c)
            return carried

        return e.loop(e.const(SPAN // 8), totals, eight)

    return body
